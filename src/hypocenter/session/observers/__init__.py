"""What is watched beside the check of every step: one file per concern. Some serve every framework, most only torch.

`OBSERVERS` are those of torch (hypocenter.session.torch_observers), loaded when they are asked for: a process that
trains with MindSpore has no torch.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "OBSERVERS":
        from hypocenter.session.torch_observers import OBSERVERS

        return OBSERVERS
    raise AttributeError(name)
