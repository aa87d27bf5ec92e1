"""torch.compile warns about global module hooks. Ours do nothing there, and to some users a warning is an error."""

from __future__ import annotations

import warnings


def silence_global_hook_warning() -> None:
    """Call before setting a global module hook."""
    warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks")
