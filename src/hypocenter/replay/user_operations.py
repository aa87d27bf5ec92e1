"""What operations of the user's own code are called in evidence: phase and site, told from where they stand.

After a module call they are loss code. In a program without modules, and before the first module is called, they are
named by function, line and variable: `forward:12 h`.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from hypocenter.nouns import Phase
from hypocenter.tap.op_context import Outside
from hypocenter.tap.tape import Event
from hypocenter.tap.transforms import TransformedCall

LOSS = "loss"  # the site of loss code
_ASSIGNED = re.compile(r"\s*([A-Za-z_][\w.\[\]'\", ]*?)\s*(?::[^=]+)?(?:[-+*/@%&|^]|//|\*\*|<<|>>)?=(?!=)")


def in_loss_code(event: Event) -> Outside:
    """Describe the operation as one of loss code."""
    return _lines(event, Outside(event.code, event.line, "loss", LOSS))


def before_the_model(event: Event) -> Outside:
    """Describe the operation as one that prepares what the model is called with."""
    return _named(event, "data")


def outside_modules(events: Sequence[Event]) -> Callable[[Event], Outside]:
    """Return a function that describes each of a micro-batch's operations outside of modules.

    Args:
        events: of the micro-batch, in order.
    """
    first = next((i for i, event in enumerate(events) if event.module is not None), None)
    if first is None:
        return lambda event: _named(event, "forward")
    before = {id(event) for event in events[:first]}
    return lambda event: _named(event, "forward") if id(event) in before else in_loss_code(event)


def _named(event: Event, phase: Phase) -> Outside:
    if event.code is None:
        return Outside(None, 0, phase, LOSS)
    name = event.code.co_name
    if name.startswith("<"):  # <module>, <lambda>, <listcomp>
        name = Path(event.code.co_filename).stem
    assigned = _ASSIGNED.match(linecache.getline(event.code.co_filename, event.line))
    variable = f" {assigned[1]}" if assigned else ""
    return _lines(event, Outside(event.code, event.line, phase, f"{name}:{event.line}{variable}"))


def _lines(event: Event, outside: Outside) -> Outside:
    """Leave the line out for a transformed function of the user, whose operations have lines of their own."""
    return replace(outside, code=None) if isinstance(event.function, TransformedCall) else outside
