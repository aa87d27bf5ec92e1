"""What an adapter of a framework is given: the ways in which it can tell the session what it sees."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from hypocenter.tap.scaled import PlainUpdate, ScaledUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """What is passed to `attach(door)` of each adapter, which returns the undo."""

    add_root: Callable[..., None]  # a module whose parameters and submodules give the names
    scaled_step: Callable[[ScaledUpdate], AbstractContextManager[None]]  # around the framework's own scaled step
    plain_step: Callable[[PlainUpdate], AbstractContextManager[None]]  # the same where there is no loss scale
    warn: Callable[[str], None]  # said once, on stderr and in run.json
    begin_chunk: Callable[[int | None], None] = lambda _: None
    """A schedule runs the forward of this micro-batch of its own counting; None: it is over."""
    forget: Callable[[], None] = lambda: None
    """What modules computed in this step until now was a trial (on made-up inputs) and no training."""
