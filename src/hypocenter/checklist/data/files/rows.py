"""Rows of the checklist about two data files: the same samples in the same order, or where they part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hypocenter.checklist.checklist import Checklist, Row, Value, Verdict
from hypocenter.checklist.data.files.data_file import DataFile, Values, digests, pieces
from hypocenter.checklist.items.item import Items
from hypocenter.checklist.verdict import conclude, ordered

_SIDES = ("baseline", "candidate")
_LEAST = 2  # tokens: fewer are equal by chance
SHOWN = 6  # values from the first difference on


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What the samples say: the verdict of the row about them, what each side shows, and why."""

    verdict: Verdict
    values: tuple[Value, Value]
    why: str
    is_moved: bool = False  # the same samples in another order
    is_cut_stream: bool = False  # a stream against its samples: their numbers and lengths are no difference

    @property
    def holds_the_same(self) -> bool:
        """Whether both hold equal values, of whatever type."""
        return self.is_moved or self.verdict in ("same", "equivalent")


def of_files(one: DataFile, other: DataFile, labels: tuple[Path, Path], items: Items) -> Checklist:
    """Compare two data files and return the whole answer."""
    content = compared(one, other)
    rows = [*_rows(one, other, content, items)]
    status, sentence = conclude(rows)
    return Checklist(
        status=status, sentence=sentence, baseline=str(labels[0]), candidate=str(labels[1]),
        rows=ordered(rows, list(items.groups)), kinds_baseline=(one.kind,), kinds_candidate=(other.kind,),
        notes=tuple(f"{name}: {note}" for name, side in zip(_SIDES, (one, other), strict=True) for note in side.notes),
    )  # fmt: skip


def compared(one: DataFile, other: DataFile) -> Content:
    """Compare the samples of both files, read once; where they differ they are read again to say how."""
    if one.is_float != other.is_float:
        kinds = tuple("fractions" if side.is_float else "whole numbers" for side in (one, other))
        return Content(verdict="different", values=(kinds[0], kinds[1]), why="one side holds no ids of tokens")
    if one.is_stream != other.is_stream:
        cut = cut_otherwise(one, other)
        return _of_stream(one, other, cut) if cut is not None else _no_stream(one, other)
    found = parting(one, other)
    if found is None:
        what = "streams are" if one.is_stream else "samples are"
        size = _size(one)
        return Content(verdict="same", values=(size, size), why=f"all {what} equal, in the same order")
    if found.only_order:
        return _moved(one, found)
    label = longer_by_label(one, other)
    if label is not None:
        return _labelled(one, other, label)
    is_shorter = found.sample >= min(found.n_samples)
    cut = None if one.is_stream or is_shorter else cut_otherwise(one, other)
    return _otherwise(one, other, cut) if cut is not None else _parted(one, found)


def _of_stream(one: DataFile, other: DataFile, cut: Cut) -> Content:
    whole, samples = (0, 1) if one.is_stream else (1, 0)
    why = f"the {_SIDES[samples]} is the {_SIDES[whole]}'s stream of tokens, cut into samples{_seams(cut)}"
    return Content(verdict="equivalent", values=(_size(one), _size(other)), why=why, is_cut_stream=True)


def _no_stream(one: DataFile, other: DataFile) -> Content:
    why = "the samples, laid end to end, are not the stream"
    return Content(verdict="different", values=(_size(one), _size(other)), why=why)


def _otherwise(one: DataFile, other: DataFile, cut: Cut) -> Content:
    why = f"the same token stream cut otherwise: {cut.n_tokens:,} tokens are equal end to end{_seams(cut)}"
    return Content(verdict="different", values=(_size(one), _size(other)), why=why)


def _seams(cut: Cut) -> str:
    """Say what the cutting into samples repeats and leaves over."""
    words = ""
    for name, overlaps, rest in zip(_SIDES, cut.overlap, cut.rest, strict=True):
        words += f"; each sample of the {name} begins with the last token of the one before" if overlaps else ""
        words += f"; the last {_tokens(rest)} of the {name} {'is' if rest == 1 else 'are'} in no sample" if rest else ""
    return words


def _labelled(one: DataFile, other: DataFile, longer: int) -> Content:
    why = (
        f"the same token stream cut otherwise: each sample of the {_SIDES[longer]} has one token more at its end, "
        "the label of the last place; all other tokens are equal"
    )
    return Content(verdict="different", values=(_size(one), _size(other)), why=why)


def _moved(one: DataFile, found: Parting) -> Content:
    why = (
        f"the same samples in another order: {found.n_differ:,} of {len(one.lengths):,} places have another; the first "
        f"is sample {found.sample:,} of the baseline, which is sample {found.moved_to:,} of the candidate"
    )
    where = f"{found.sample}[{found.position}]"
    values = (f"{where}: {found.values[0]}", f"{where}: {found.values[1]}")
    return Content(verdict="different", values=values, why=why, is_moved=True)


def _parted(one: DataFile, found: Parting) -> Content:
    at = f"position {found.position:,}" if one.is_stream else f"sample {found.sample:,}, position {found.position:,}"
    why = f"the first difference is at {at}"
    if not one.is_stream:
        why += (
            f"; samples differ at {found.n_differ:,} of {max(found.n_samples):,} places, "
            f"and {found.n_missing:,} of the baseline's {found.n_samples[0]:,} are not in the candidate"
        )
        if found.moved_to is not None:
            why += f"; that sample of the baseline is sample {found.moved_to:,} of the candidate"
    where = f"[{found.position}]" if one.is_stream else f"{found.sample}[{found.position}]"
    return Content(verdict="different", values=(f"{where}: {found.values[0]}", f"{where}: {found.values[1]}"), why=why)


def _rows(one: DataFile, other: DataFile, content: Content, items: Items) -> Iterator[Row]:
    yield _row(items, "data.file_samples", content.values, content.verdict, content.why)
    for key, values in (
        ("data.file_count", (_count(one), _count(other))),
        ("data.file_lengths", (_lengths(one), _lengths(other))),
    ):
        verdict, why = _measured(one, other, values, content)
        yield _row(items, key, values, verdict, why)
    types = (str(one.dtype), str(other.dtype))
    alike = "equivalent" if content.holds_the_same else "different"
    why = f"the values are equal, as {types[0]} and as {types[1]}" if content.holds_the_same else ""
    same = types[0] == types[1]
    yield _row(items, "data.file_dtype", types, "same" if same else alike, "" if same else why)
    yield from _documents(one, other, items)


def _measured(one: DataFile, other: DataFile, values: tuple[Value, Value], content: Content) -> tuple[Verdict, str]:
    if content.is_cut_stream:
        return "equivalent", "a stream has no samples until a loader cuts it"
    if one.is_stream != other.is_stream:
        return "cannot-tell", "a stream has no samples until a loader cuts it"
    return ("same" if values[0] == values[1] else "different"), ""


def _documents(one: DataFile, other: DataFile, items: Items) -> Iterator[Row]:
    mine, theirs = one.n_documents, other.n_documents
    if mine is None and theirs is None:
        return
    verdict: Verdict = "same" if mine == theirs else "different"
    if mine is None or theirs is None:
        verdict = "only-baseline" if theirs is None else "only-candidate"
    yield _row(items, "data.file_documents", (mine, theirs), verdict, "")


def _row(items: Items, key: str, values: tuple[Value, Value], verdict: Verdict, why: str) -> Row:
    item = items.by_key[key]
    reasons = [why, item.why] if verdict == "different" else [why]
    return Row(
        item=item.key, title=item.title, group=item.group, baseline=values[0], candidate=values[1], verdict=verdict,
        severity=item.importance, why="; ".join(filter(None, reasons)),
        fix=item.fix if verdict == "different" else "",
    )  # fmt: skip


def _size(file: DataFile) -> str:
    return f"{int(file.lengths.sum()):,} tokens" if file.is_stream else f"{len(file.lengths):,} samples"


def _count(file: DataFile) -> Value:
    return "a stream" if file.is_stream else len(file.lengths)


def _lengths(file: DataFile) -> str:
    if not len(file.lengths):
        return "none"
    least, most, all_ = int(file.lengths.min()), int(file.lengths.max()), int(file.lengths.sum())
    return f"{least:,}, {all_:,} in all" if least == most else f"{least:,} to {most:,}, {all_:,} in all"


def _tokens(n: int) -> str:
    return "token" if n == 1 else f"{n:,} tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How the two sides cut one stream into samples."""

    n_tokens: int  # of the stream that both hold
    overlap: tuple[bool, bool]  # whether each sample of a side begins with the last token of the one before
    rest: tuple[int, int]  # tokens at the end that only this side has


def cut_otherwise(one: DataFile, other: DataFile) -> Cut | None:
    """Return how both cut one stream of tokens into samples of other lengths; None when it is not one stream.

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
    """Return the side (0, 1) that has one token more at the end of every sample, all else equal; None: neither."""
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
    """Yield all samples as one stream; None where a sample does not begin with the last token of the one before."""
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
    """Return how many values both have, and how many more each has; None at the first difference."""
    left: list[Values] = [np.empty(0, dtype=np.int64)] * 2
    sources, n_both = (one, other), 0
    while True:
        for i, source in enumerate(sources):
            while not left[i].size:
                following = next(source, _END)
                if following is None:
                    return None
                if following is _END:
                    rest = [_n_left(left[j], sources[j]) if j != i else 0 for j in range(2)]
                    return None if None in rest else (n_both, (int(rest[0] or 0), int(rest[1] or 0)))
                left[i] = following
        n = min(len(values) for values in left)
        if not np.array_equal(left[0][:n], left[1][:n]):
            return None
        left, n_both = [values[n:] for values in left], n_both + n


_END: Values = np.empty(0, dtype=np.int64)  # told from a piece by identity


def _n_left(values: Values, source: Iterator[Values | None]) -> int | None:
    n = len(values)
    for piece in source:
        if piece is None:
            return None
        n += len(piece)
    return n


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
    """Return where and how the samples differ; None when they are the same in the same order."""
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
        n_differ=int((mine[:n] != theirs[:n]).sum()) + abs(len(mine) - len(theirs)), n_missing=_n_missing(mine, theirs),
        moved_to=int(places[0]) if places.size else None,
        only_order=len(mine) == len(theirs) and bool(np.array_equal(np.sort(mine), np.sort(theirs))),
    )  # fmt: skip


def first_difference(one: DataFile, other: DataFile, sample: int) -> int | None:
    """Return the first position where a sample's values differ or one ends; None when they are equal."""
    at = 0
    for mine, theirs in zip(pieces(one, sample), pieces(other, sample), strict=False):
        n = min(len(mine), len(theirs))
        differ = mine[:n] != theirs[:n]
        if differ.any():
            return at + int(differ.argmax())
        at += n
    return at if one.lengths[sample] != other.lengths[sample] else None


def shown(file: DataFile, sample: int, position: int) -> str:
    """Return a few values of a sample, from a position on, as text."""
    if sample >= len(file.lengths):
        return "no such sample"
    end = int(file.lengths[sample])
    values = file.read(sample, position, min(position + SHOWN, end)).tolist()
    return " ".join(map(str, values)) + (" ..." if position + SHOWN < end else "") if values else "ends here"


def _n_missing(mine: npt.NDArray[np.uint64], theirs: npt.NDArray[np.uint64]) -> int:
    """Count the samples of the first that the second lacks, repeated ones as often as they occur."""
    known, counts = np.unique(mine, return_counts=True)
    found, there = np.unique(theirs, return_counts=True)
    at = np.searchsorted(found, known)
    has = np.zeros(len(known), dtype=np.int64)
    inside = at < len(found)
    hit = np.zeros(len(known), dtype=bool)
    hit[inside] = found[at[inside]] == known[inside]
    has[hit] = there[at[hit]]
    return int(np.maximum(counts - has, 0).sum())
