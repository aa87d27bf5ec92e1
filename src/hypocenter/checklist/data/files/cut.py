"""The same tokens, cut otherwise: a stream against samples, other lengths, one token more for the label."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hypocenter.checklist.data.files.data_file import DataFile, Values, pieces

_LEAST = 2  # tokens: fewer are equal by chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How the two sides cut one stream."""

    n_tokens: int  # of the stream that both hold
    overlap: tuple[bool, bool]  # whether each sample of a side begins with the last token of the one before
    rest: tuple[int, int]  # tokens at the end that only this side has


def cut_otherwise(one: DataFile, other: DataFile) -> Cut | None:
    """Whether both hold one stream of tokens, in samples of other lengths.

    A rest at the end that only one side has must be shorter than a sample of the other: what its cutting left over.
    """
    for overlap in ((False, False), (True, False), (False, True), (True, True)):
        if any(
            asked and (side.is_stream or len(side.lengths) < _LEAST)
            for asked, side in zip(overlap, (one, other), strict=True)
        ):
            continue
        found = _lockstep(_joined(one, overlapping=overlap[0]), _joined(other, overlapping=overlap[1]))
        if found is None or found[0] < _LEAST:
            continue
        n_tokens, rest = found
        longest = [int(side.lengths.max(initial=0)) for side in (one, other)]
        if rest[0] <= longest[1] and rest[1] <= longest[0] and n_tokens > max(rest):
            return Cut(n_tokens=n_tokens, overlap=overlap, rest=rest)
    return None


def longer_by_label(one: DataFile, other: DataFile) -> int | None:
    """Which side (0, 1) has in every sample one token more at its end, all others being equal; None: neither."""
    if len(one.lengths) != len(other.lengths) or not len(one.lengths):
        return None
    more = np.unique(np.asarray(one.lengths) - np.asarray(other.lengths))
    if more.tolist() not in ([1], [-1]):
        return None
    shorter = other if more[0] == 1 else one
    for sample in range(len(one.lengths)):
        found = _lockstep(pieces(one, sample), pieces(other, sample))
        if found is None or found[0] != shorter.lengths[sample]:
            return None
    return 0 if more[0] == 1 else 1


def _joined(file: DataFile, *, overlapping: bool) -> Iterator[Values | None]:
    """All samples as one stream; None where a sample does not begin with the last token of the one before."""
    last: int | None = None
    for sample in range(len(file.lengths)):
        is_first = True
        for piece in pieces(file, sample):
            if overlapping and is_first and last is not None:
                if int(piece[0]) != last:
                    yield None
                yield piece[1:]
            else:
                yield piece
            is_first, last = False, int(piece[-1])


def _lockstep(one: Iterator[Values | None], other: Iterator[Values | None]) -> tuple[int, tuple[int, int]] | None:
    """How many values both have, and how many more each has; None at the first difference."""
    left: list[Values] = [np.empty(0, dtype=np.int64)] * 2
    sources, n_both = (one, other), 0
    while True:
        for i, source in enumerate(sources):
            while not left[i].size:
                following = next(source, _END)
                if following is None:
                    return None
                if following is _END:
                    rest = [_count(left[j], sources[j]) if j != i else 0 for j in range(2)]
                    return None if None in rest else (n_both, (int(rest[0] or 0), int(rest[1] or 0)))
                left[i] = following
        n = min(len(values) for values in left)
        if not np.array_equal(left[0][:n], left[1][:n]):
            return None
        left, n_both = [values[n:] for values in left], n_both + n


_END: Values = np.empty(0, dtype=np.int64)  # told from a piece by identity


def _count(values: Values, source: Iterator[Values | None]) -> int | None:
    n = len(values)
    for piece in source:
        if piece is None:
            return None
        n += len(piece)
    return n
