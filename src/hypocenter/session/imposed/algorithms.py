"""`--deterministic`: torch takes the deterministic form of every operation that has one.

An operation without one goes on, and is named in a warning: a program must not die of it. Attention is the exception:
with `warn_only` torch runs its backward in the form that is not deterministic, so the strict mode is on for just that.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from typing import Any

import torch

from hypocenter import deterministic
from hypocenter.config import Config
from hypocenter.session.imposed.wanted_seed import wanted_seed

_NAMES = re.compile(r"^(.+?) (?:does not have a deterministic implementation|defaults to a non-deterministic)")
_state: dict[str, Any] = {}  # what has been put in place in this process, so that it is put there once


def begin(config: Config, warn: Callable[[str], None]) -> dict[str, str]:
    """Set torch's switches, and the variables that are read later than at the start of the process."""
    if not config.deterministic:
        return {}
    os.environ.update(deterministic.environment(os.environ, wanted_seed(config) or 0))
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    _state["warn"] = warn
    if "names" not in _state:
        _state["names"] = True
        _listen()
        _make_attention_strict()
    return {"algorithms": "deterministic algorithms"}


def _listen() -> None:
    """Say in our words which operation has no deterministic form: torch's own warning tells people to file an issue."""
    show: Any = getattr(warnings, "_showwarnmsg", None)
    if show is None:
        return

    def show_warning(message: Any) -> None:
        found = _NAMES.match(str(message.message))
        if found is None or not issubclass(message.category, UserWarning):
            show(message)
            return
        place = f"{message.filename}:{message.lineno}"
        _state["warn"](f"{found[1]} has no deterministic form, so results may differ from run to run ({place})")

    warnings._showwarnmsg = show_warning  # type: ignore[attr-defined]
    for text in ("does not have a deterministic", "defaults to a non-deterministic"):
        warnings.filterwarnings("default", message=f".*{text}", category=UserWarning)


def _make_attention_strict() -> None:
    functional: Any = torch.nn.functional
    attention = functional.scaled_dot_product_attention

    def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
        out = attention(*args, **kwargs)
        if not torch.compiler.is_compiling() and _needs_strictness(out):
            be_strict(out.grad_fn)
        return out

    scaled_dot_product_attention.__doc__ = attention.__doc__
    functional.scaled_dot_product_attention = scaled_dot_product_attention


def _needs_strictness(out: Any) -> bool:
    return out.is_cuda and out.grad_fn is not None and torch.is_deterministic_algorithms_warn_only_enabled()


def be_strict(node: Any) -> None:
    """Run this node of the autograd graph without `warn_only`, so that it is deterministic or fails."""

    def before(_: Any) -> None:
        torch.use_deterministic_algorithms(True)

    def after(*_: Any) -> None:
        torch.use_deterministic_algorithms(True, warn_only=True)

    node.register_prehook(before)
    node.register_hook(after)
