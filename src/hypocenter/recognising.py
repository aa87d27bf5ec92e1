"""Which reader of a catalogue a path is for, told by what is in it: by every command that takes files of others.

A reader says how sure it is that something is its own: `accepts(seen)` is 0 or False (not mine) to 1 or True (certain).
`seen` is what its catalogue shows of a path. Readers are asked in order (`order`, then the name); the first that is
certain is taken, else the surest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from hypocenter.catalogue import Catalogue
from hypocenter.errors import HypocenterError, UnknownNameError


class Recogniser(Protocol):
    """What a reader must have, to be picked by what it accepts."""

    @property
    def accepts(self) -> Callable[[Any], float]:
        """A function that returns how sure the reader is that a thing is its own, from 0 to 1."""
        ...


R = TypeVar("R", bound=Recogniser)


def recognised(readers: Catalogue[R], seen: object) -> R | None:
    """Return the reader that is surest of this; None when no reader accepts it."""
    best, found = 0.0, None
    for reader in readers.in_order():
        sure = float(reader.accepts(seen))
        if sure > best:
            best, found = sure, reader
        if best >= 1:
            break
    return found


def unknown(
    error: type[HypocenterError], what: str, readers: Catalogue[Any], *, where: object, fix: str, empty: str = ""
) -> HypocenterError:
    """Return the error that no reader accepts this, with all that was looked for.

    Args:
        what: "kind of log".
        empty: said in place of that, where nothing is there.
    """
    why = empty or f"it looks like none of: {', '.join(readers.entries())}"
    return error(f"nobody knows what {what} this is", where=str(where), why=why, fix=fix)


def by_name(readers: Catalogue[R], kind: str, what: str, where: str) -> R:
    """Return the reader that somebody named.

    Raises:
        UnknownNameError: there is none.
    """
    known = readers.entries()
    if kind not in known:
        raise UnknownNameError(
            f"no {what} is called {kind!r}",
            where=where,
            why=f"there are {', '.join(known)}",
            fix="leave it out: the kind is told by the content",
        )
    return known[kind]
