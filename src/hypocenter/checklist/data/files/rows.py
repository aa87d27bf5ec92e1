"""Rows of the checklist about two data files: the same samples in the same order, or where they part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hypocenter.checklist.checklist import Checklist, Row, Verdict
from hypocenter.checklist.configuration import Value
from hypocenter.checklist.data.files.cut import Cut, cut_otherwise, longer_by_label
from hypocenter.checklist.data.files.data_file import DataFile
from hypocenter.checklist.data.files.order import Parting, parting
from hypocenter.checklist.items.item import Items
from hypocenter.checklist.verdict import conclude, ordered

_SIDES = ("baseline", "candidate")


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
        """Whether both hold equal values, in whatever type."""
        return self.is_moved or self.verdict in ("same", "equivalent")


def of_files(one: DataFile, other: DataFile, labels: tuple[Path, Path], items: Items) -> Checklist:
    """The whole answer about two data files."""
    content = compared(one, other)
    rows = [*_rows(one, other, content, items)]
    status, sentence = conclude(rows)
    return Checklist(
        status=status, sentence=sentence, baseline=str(labels[0]), candidate=str(labels[1]),
        rows=ordered(rows, list(items.groups)), kinds_baseline=(one.kind,), kinds_candidate=(other.kind,),
        notes=tuple(f"{name}: {note}" for name, side in zip(_SIDES, (one, other), strict=True) for note in side.notes),
    )  # fmt: skip


def compared(one: DataFile, other: DataFile) -> Content:
    """Both files' samples, read once; read again where they differ, to say how."""
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
    """What the cutting repeats and leaves over."""
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
