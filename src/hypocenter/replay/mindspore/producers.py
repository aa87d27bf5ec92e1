"""Who made a tensor: by its address while it lives, by its content where it is a copy of what was not finite."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from hypocenter.optrace import LITERAL_NEGINF, LITERAL_POSINF, NAN, NEGINF, POSINF, Edge
from hypocenter.replay.host_values import same_values
from hypocenter.replay.mindspore.host import address, values

ALIVE_BYTES = 4 << 30  # results kept so that their addresses are not used again
CAPTURE_BYTES = 256 << 20  # of one value whose copies can be recognised
MAX_BAD = 64  # last non-finite values whose copies can be recognised


@dataclass(slots=True)
class Written:
    """What made a tensor, and which non-finite values were in it."""

    edge: int  # producing op, or -1 - leaf
    bits: int


@dataclass(slots=True)
class _Bad:
    content: NDArray[Any]
    written: Written


class Producers:
    """Know what made each tensor of a trace."""

    def __init__(self) -> None:
        self._of: dict[int, Written] = {}
        self._bad: deque[_Bad] = deque(maxlen=MAX_BAD)
        self._alive: deque[tuple[Any, int]] = deque()
        self._alive_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether no more can be kept alive."""
        return self._alive_bytes >= ALIVE_BYTES

    def at(self, tensor: Any) -> Written | None:
        """Return what is known of a tensor by its address alone; None if nothing is."""
        return self._of.get(address(tensor))

    def last_bad(self) -> list[int]:
        """Return the operators whose results were not finite, the last one first."""
        return [w.edge for each in reversed(self._bad) if (w := each.written).edge >= 0]

    def write(self, tensor: Any, array: NDArray[Any] | None, written: Written) -> None:
        """Note that a tensor was made, or written over; `array` holds its values."""
        key = address(tensor)
        if key:
            self._of[key] = written
            self._keep(tensor)
        if written.bits and array is not None and array.nbytes <= CAPTURE_BYTES:
            self._bad.append(_Bad(array.copy(), written))

    def _keep(self, tensor: Any) -> None:
        size = int(tensor.nbytes)
        self._alive.append((tensor, size))
        self._alive_bytes += size
        while self._alive_bytes > ALIVE_BYTES:
            self._alive_bytes -= self._alive.popleft()[1]

    def known(self, tensor: Any, now: int) -> Edge | None:
        """Return what made a tensor, by address; by content if it was changed meanwhile, or is a copy; else None."""
        written = self._of.get(address(tensor))
        if written is not None and (not now or written.bits):
            return Edge(producer=written.edge, bits=_seen_of(now, written.bits))
        if not now:
            return None
        array = values(tensor)
        for bad in reversed(self._bad):
            if same_values(bad.content, array):
                self._of[address(tensor)] = bad.written
                self._keep(tensor)
                return Edge(producer=bad.written.edge, bits=_seen_of(now, bad.written.bits))
        return None


def _seen_of(now: int, written: int) -> int:
    """Return the part of what was written that this view shows, as bits."""
    bits = now & NAN
    for kind, literal in ((POSINF, LITERAL_POSINF), (NEGINF, LITERAL_NEGINF)):
        if now & kind:
            bits |= written & (kind | literal) or kind
    return bits
