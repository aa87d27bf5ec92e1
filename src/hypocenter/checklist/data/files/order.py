"""Where two files of samples part: the first sample that differs, and whether the others merely moved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hypocenter.checklist.data.files.data_file import DataFile, digests, pieces

SHOWN = 6  # values from the first difference on


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """What is known of two files that are not the same samples in the same order."""

    sample: int  # the first that differs; of the longer file, where the shorter one ends
    position: int  # in it
    values: tuple[str, str]  # from there on
    n_samples: tuple[int, int]  # of both sides
    n_differ: int  # places whose samples differ
    n_missing: int  # samples of the baseline that the candidate does not have
    moved_to: int | None  # where the candidate has the baseline's `sample`
    only_order: bool  # the same samples, all of them


def parting(one: DataFile, other: DataFile) -> Parting | None:
    """None: the same samples in the same order."""
    n = min(len(one.lengths), len(other.lengths))
    sample, position = next(
        ((i, at) for i in range(n) if (at := first_difference(one, other, i)) is not None),
        (n, 0) if len(one.lengths) != len(other.lengths) else (-1, 0),
    )
    if sample < 0:
        return None
    mine, theirs = digests(one), digests(other)
    places = np.flatnonzero(theirs == mine[sample]) if sample < len(mine) else np.empty(0, dtype=np.int64)
    return Parting(
        sample=sample, position=position, values=(shown(one, sample, position), shown(other, sample, position)),
        n_samples=(len(mine), len(theirs)),
        n_differ=int((mine[:n] != theirs[:n]).sum()) + abs(len(mine) - len(theirs)), n_missing=_missing(mine, theirs),
        moved_to=int(places[0]) if places.size else None,
        only_order=len(mine) == len(theirs) and bool(np.array_equal(np.sort(mine), np.sort(theirs))),
    )  # fmt: skip


def first_difference(one: DataFile, other: DataFile, sample: int) -> int | None:
    """The first position of a sample whose values differ, or where one of both ends; None: equal."""
    at = 0
    for mine, theirs in zip(pieces(one, sample), pieces(other, sample), strict=False):
        n = min(len(mine), len(theirs))
        differ = mine[:n] != theirs[:n]
        if differ.any():
            return at + int(differ.argmax())
        at += n
    return at if one.lengths[sample] != other.lengths[sample] else None


def shown(file: DataFile, sample: int, position: int) -> str:
    """A few values of a sample, from a position on."""
    if sample >= len(file.lengths):
        return "no such sample"
    end = int(file.lengths[sample])
    values = file.read(sample, position, min(position + SHOWN, end)).tolist()
    return " ".join(map(str, values)) + (" ..." if position + SHOWN < end else "") if values else "ends here"


def _missing(mine: npt.NDArray[np.uint64], theirs: npt.NDArray[np.uint64]) -> int:
    """Samples of the one that the other lacks, as often as each stands in it."""
    known, counts = np.unique(mine, return_counts=True)
    found, there = np.unique(theirs, return_counts=True)
    at = np.searchsorted(found, known)
    has = np.zeros(len(known), dtype=np.int64)
    inside = at < len(found)
    hit = np.zeros(len(known), dtype=bool)
    hit[inside] = found[at[inside]] == known[inside]
    has[hit] = there[at[hit]]
    return int(np.maximum(counts - has, 0).sum())
