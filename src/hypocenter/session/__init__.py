"""The composition root of the recording half: the only place where tap, summary, record and replay meet."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from hypocenter.session.dispatch import start_from_env, watch

if TYPE_CHECKING:
    from hypocenter.session.start import probe

__all__ = ["probe", "start_from_env", "watch"]


def __getattr__(name: str) -> Any:
    """Return `probe` of the one framework that is imported, or one that dispatches: torch.compile looks into it."""
    if name != "probe":
        raise AttributeError(f"module 'hypocenter.session' has no attribute {name!r}")
    if "mindspore" not in sys.modules:
        from hypocenter.session.start import probe
    elif "torch" not in sys.modules:
        from hypocenter.session.mindspore.start import probe
    else:
        from hypocenter.session.dispatch import probe
    return probe
