"""Which framework's session is meant. Imports none: a program has imported what it trains with."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from hypocenter.session.handle import Handle

T = TypeVar("T")


def watch(model: Any = None, optimizer: Any = None, scaler: Any = None, **options: Any) -> Handle:
    """Watch training from here on, in this process: of PyTorch, or of MindSpore.

    Args:
        model: gives parameters and modules their names; when None, the outermost module that is called does. A torch
            module or a MindSpore Cell.
        optimizer: need not be given (every optimizer is seen); accepted for readability.
        scaler: need not be given when it is torch's GradScaler or derived from it, or one of MindSpore's; one of
            another class with the same methods is seen from its first step when given, else from its first update on.
        options: any field of `hypocenter.config.Config`: level="modules", out="runs/mine", ...

    Raises:
        ConfigError: an unknown option, or a value it cannot have.
        ExistsError: `out` holds a recording and `force` is not set.
    """
    if _is_mindspore(model, optimizer, scaler):
        from hypocenter.session.mindspore.start import watch as watch_mindspore

        return watch_mindspore(model, optimizer, scaler, **options)
    from hypocenter.session.start import watch as watch_torch

    return watch_torch(model, optimizer, scaler, **options)


def start_from_env(framework: str = "torch") -> None:
    """Start the session of a process that `hypocenter run` launched. Called once the framework has been imported.

    A process that imports both has a session for each; the one whose program makes a step first writes.
    """
    if framework == "mindspore":
        from hypocenter.session.mindspore.start import start_from_env as start
    else:
        from hypocenter.session.start import start_from_env as start
    start()


def probe(value: T, label: str) -> T:
    """Watch a value inside a forward: `x = hypocenter.probe(x, "after layer_norm")`. Returns it unchanged.

    Recorded at every level, at site "<module>.<label>", port "probe"; its gradient at port "grad_probe". Without a
    session, outside training, and inside torch.compile or a graph of MindSpore it does nothing.
    """
    if _is_mindspore(value):
        from hypocenter.session.mindspore.start import probe as probe_mindspore

        return probe_mindspore(value, label)
    from hypocenter.session.start import probe as probe_torch

    return probe_torch(value, label)


def _is_mindspore(*things: Any) -> bool:
    """Return whether one of these is MindSpore's; when none tells, whether only MindSpore is imported."""
    tops = {base.__module__.partition(".")[0] for thing in things for base in type(thing).__mro__}
    if tops & {"torch", "mindspore"}:
        return "mindspore" in tops
    return "mindspore" in sys.modules and "torch" not in sys.modules
