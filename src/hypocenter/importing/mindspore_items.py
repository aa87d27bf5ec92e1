"""What MindSpore dumped of one step: tensors by the run of an operator that had them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from hypocenter.compare.weights.checkpoint import Tensor
from hypocenter.importing.mindspore_graph import Node
from hypocenter.importing.mindspore_names import IO, PARAMETER, FileName, dtype_of
from hypocenter.importing.mindspore_tree import rows_of
from hypocenter.importing.statistics import shape_of, summary_of
from hypocenter.nouns import Reading, StepRecord, Summary
from hypocenter.record.facts_file import Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A dumped tensor: its file, or what statistic.csv has of it, or both."""

    name: FileName
    graph: int
    path: Path | None = None
    row: Row | None = None


@dataclass(slots=True, kw_only=True)
class Execution:
    """One run of an operator."""

    graph: int
    op_type: str
    name: str
    time_us: int
    items: dict[tuple[str, int], Item] = field(default_factory=dict)  # by input or output, and slot
    node: Node | None = None

    @property
    def inputs(self) -> list[Item]:
        """The inputs, by slot."""
        return [item for (io, _), item in sorted(self.items.items()) if io == "input"]

    @property
    def outputs(self) -> list[Item]:
        """The outputs, by slot."""
        return [item for (io, _), item in sorted(self.items.items()) if io == "output"]


def joined(files: Iterable[Item], rows: Iterable[Item]) -> list[Item]:
    """Return files, each with its row of statistics, and rows of which there is no file."""
    found: dict[tuple[int, str, str, str, int, int], Item] = {}
    loose: dict[tuple[int, str, str, str, int], tuple[int, str, str, str, int, int]] = {}
    for item in files:
        name = item.name
        key = (item.graph, name.op_type, name.name, name.io, name.slot, name.time_us)
        found[key] = item
        loose[key[:5]] = key
    for item in rows:
        name = item.name
        key = (item.graph, name.op_type, name.name, name.io, name.slot, name.time_us)
        of = key if key in found else loose.get(key[:5], key)
        known = found.get(of)
        if known is None or known.path is None:
            found[of] = item
        else:
            found[of] = Item(name=known.name, graph=known.graph, path=known.path, row=item.row)
    return list(found.values())


def executions(items: Iterable[Item]) -> tuple[list[Execution], list[Item]]:
    """Return runs of operators in the order in which they began, and the parameters beside them.

    An operator that ran again has the same name; its next run begins where an input or output of it comes again.
    """
    current: dict[tuple[int, str, str], Execution] = {}
    found: list[Execution] = []
    parameters: list[Item] = []
    for item in sorted(items, key=lambda i: (i.name.time_us, i.name.name, i.name.io, i.name.slot)):
        if item.name.op_type == PARAMETER:
            parameters.append(item)
            continue
        key, spot = (item.graph, item.name.op_type, item.name.name), (item.name.io, item.name.slot)
        run = current.get(key)
        if run is None or spot in run.items:
            run = current[key] = Execution(graph=item.graph, op_type=key[1], name=key[2], time_us=item.name.time_us)
            found.append(run)
        run.items[spot] = item
    return found, parameters


class Sink(Protocol):
    """Takes readings rank by rank, and for each rank in order of steps."""

    def problem(self, text: str) -> None:
        """Note something of the dump that is damaged or was left out."""
        ...

    def note(self, text: str) -> None:
        """Note something that the reader of the recording should know: what is not held, how a thing was taken."""
        ...

    def set_version(self, version: str, *, digest: str = "") -> None:
        """Set the version of the dump's format, and what its digests are."""
        ...

    def begin(self, rank: int, step: int) -> None:
        """Begin a step of a rank: what follows belongs to it."""
        ...

    def add(self, reading: Reading) -> None:
        """Add one reading of the current step."""
        ...

    def keep(self, site: str, key: str, microbatch: int, tensor: Tensor) -> None:
        """Keep values of the current step, which lie in a file of the dump."""
        ...

    def end(self, record: StepRecord) -> None:
        """End the current step: it is complete."""
        ...

    def facts(self, rank: int, facts: Facts) -> None:
        """Set what the program of a rank is made of, as far as the dump tells."""
        ...


_BAD = {"NaN Count": "n_nan", "Positive Inf Count": "n_posinf", "Negative Inf Count": "n_neginf"}
_WHOLE = re.compile(r"\d{1,18}")
_DIGESTS = {"MD5": "md5", "SHA1": "sha1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a row tells of one tensor."""

    name: FileName
    shape: tuple[int, ...]
    summary: Summary
    lacks: str
    digest: int | None = None  # the first 64 bits
    digest_kind: str = ""


def statistics(path: Path, say: Callable[[str], None]) -> Iterator[Row]:
    """Yield the rows of a file.

    Args:
        path: statistic.csv.
        say: takes one line when rows are left out.
    """
    rows = rows_of(path)
    head = next(rows, [])
    columns = {name.strip(): i for i, name in enumerate(head)}
    if not {"Op Type", "Op Name", "IO", "Slot"} <= columns.keys():
        say(f"{path} is left out: it has no columns Op Type, Op Name, IO, Slot")
        return
    n_bad = 0
    for row in rows:
        found = _row({name: row[i].strip() for name, i in columns.items() if i < len(row)})
        if found is None:
            n_bad += bool(row)
            continue
        yield found
    if n_bad:
        say(f"{path}: {n_bad:,} rows could not be read")


def _row(cells: Mapping[str, str]) -> Row | None:
    shape, slot = _shape(cells.get("Shape", "")), _whole(cells.get("Slot", ""))
    io = cells.get("IO", "").lower()
    if shape is None or slot is None or io not in ("input", "output") or not cells.get("Op Name"):
        return None
    dtype = dtype_of(cells.get("Data Type", ""))
    n = math.prod(shape)
    where: IO = "input" if io == "input" else "output"
    summary, lacks = summary_of(
        n, high=_real(cells.get("Max Value")), low=_real(cells.get("Min Value")), mean=_real(cells.get("Avg Value")),
        norm=_real(cells.get("L2Norm Value")), dtype=dtype, is_rounded=True,
    )  # fmt: skip
    summary, lacks = _counted(summary, lacks, cells)
    kind = next((word for word in _DIGESTS if cells.get(word)), "")
    name = FileName(
        op_type=cells.get("Op Type", "")[:200], name=cells["Op Name"].replace("/", "_")[:4096],
        time_us=_whole(cells.get("Timestamp", "")) or 0, io=where, slot=slot, dtype=dtype,
    )  # fmt: skip
    return Row(
        name=name, shape=shape, summary=summary, lacks=lacks, digest=_digest(cells.get(kind, "")),
        digest_kind=_DIGESTS.get(kind, ""),
    )  # fmt: skip


def _counted(summary: Summary, lacks: str, cells: Mapping[str, str]) -> tuple[Summary, str]:
    """Return summary and lacks with the counts that the row has: these are exact."""
    counts = {key: _whole(cells[name]) for name, key in _BAD.items() if name in cells}
    known = {key: value for key, value in counts.items() if value is not None and value <= summary.n}
    if not known or sum(known.values()) > summary.n:
        return summary, lacks
    words = lacks.split()
    summary = replace(summary, **known)
    if len(known) == len(_BAD) and "counts" in words:
        words.remove("counts")
    if summary.n_nonfinite:  # what a mean over them is, is not said
        summary = replace(summary, sum=0.0, sumsq=0.0)
        words = [word for word in words if word != "rough"] + ["sum", "sumsq"]
    return summary, " ".join(dict.fromkeys(words))


def _shape(text: str) -> tuple[int, ...] | None:
    words = text.strip().strip("()[]\"'").replace(",", " ").split()
    return shape_of(list(map(int, words))) if all(map(_WHOLE.fullmatch, words)) else None


def _whole(text: str) -> int | None:
    return int(text) if _WHOLE.fullmatch(text) else None


def _real(text: str | None) -> float | None:
    try:
        return float(text) if text and len(text) < 64 else None
    except ValueError:
        return {"true": 1.0, "false": 0.0}.get(text.lower()) if text else None


def _digest(text: str) -> int | None:
    if not re.fullmatch(r"[0-9a-fA-F]{16,64}", text):
        return None
    value = int(text[:16], 16)
    return value - (1 << 64) if value >> 63 else value
