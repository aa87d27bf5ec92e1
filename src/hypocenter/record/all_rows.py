"""All readings of a step as one sequence, for sinks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import overload

from hypocenter.nouns import Reading
from hypocenter.record.norm_rows import NormRows


class AllRows(Sequence[Reading]):
    """Rows, and norms beside them, which become rows only where somebody looks at them: that costs a millisecond.

    Attributes:
        rows: those that are.
        norms: of gradients; None where there are none.
    """

    def __init__(self, rows: Sequence[Reading], norms: NormRows | None) -> None:
        self.rows, self.norms = tuple(rows), norms

    def __len__(self) -> int:
        return len(self.rows) + len(self.norms or ())

    @overload
    def __getitem__(self, at: int) -> Reading: ...
    @overload
    def __getitem__(self, at: slice) -> list[Reading]: ...
    def __getitem__(self, at: int | slice) -> Reading | list[Reading]:
        if isinstance(at, slice):
            return list(self)[at]
        at = range(len(self))[at]
        return self.rows[at] if self.norms is None or at < len(self.rows) else self.norms[at - len(self.rows)]

    def __iter__(self) -> Iterator[Reading]:
        return chain(self.rows, self.norms or ())
