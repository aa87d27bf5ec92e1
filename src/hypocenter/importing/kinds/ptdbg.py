"""Dumps of ptdbg_ascend: api_stack_dump.pkl, which is no pickle but one JSON list a line, and .npy files beside it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from hypocenter.compare.weights.checkpoint import CheckpointError
from hypocenter.importing.catalogue import Head, NotADumpError, importer
from hypocenter.importing.layout_of_steps import Part, parts_of
from hypocenter.importing.msprobe_step import Call, Name, Sites, Step
from hypocenter.importing.recording import Recording
from hypocenter.importing.statistics import OF_STATISTICS, shape_of, summary_of, value_of
from hypocenter.importing.tensor_file import open_tensor, summary_of_values
from hypocenter.importing.text import own_line, source, writable_tree
from hypocenter.nouns import Reading, Source, StepRecord, Summary

_LINE_AT_MOST = 16 << 20  # bytes of one line; a stack of a hundred frames has 30 KB
_DOTS = re.compile(r"(\w+)\.(.+)\.(\d{1,12})\.(forward|backward)\.(input|output|stack_info)((?:\.\w{1,100}){0,16})")
_BARS = re.compile(r"([A-Za-z]+)_(.+)_(\d{1,12})_(forward|backward)_(input|output|stack_info)((?:\.\w{1,100}){0,16})")
_PORTS = {("forward", "input"): "in", ("forward", "output"): "out", ("backward", "input"): "grad_out",
          ("backward", "output"): "grad_in"}  # fmt: skip


def accepts(head: Head) -> float:
    """Return how sure it is lines of JSON lists as ptdbg writes them, or a folder with such a .pkl (0 to 1)."""
    if not head.is_directory:
        return 0.9 if _is_ours(head.start) else 0.0
    for name in [n for n in head.names if n.endswith(".pkl")][:20]:
        try:
            with (head.path / name).open("rb") as file:
                if _is_ours(file.read(4096)):
                    return 0.9
        except OSError:
            continue
    return 0.0


def _is_ours(start: bytes) -> bool:
    text = start[:300].decode("utf-8", "replace")
    found = re.match(r'\["([^"]{1,200})", ?', text)
    return found is not None and (_DOTS.fullmatch(found[1]) or _BARS.fullmatch(found[1])) is not None


@importer("ptdbg", accepts=accepts)
def read(path: Path, into: Recording) -> None:
    """ptdbg_ascend (2023 to 2024): api_stack_dump.pkl, a text of one JSON list a line; never unpickled."""
    parts = parts_of(path, lambda name: name.endswith(".pkl"), into)
    if not parts:
        raise NotADumpError("no .pkl in it", where=str(path), fix="name the folder ptdbg_dump_v*/")
    for note in OF_STATISTICS:
        into.note(note)
    into.note("no modules were recorded: each API is a site, and calls are counted per API")
    for part in parts:
        _Reader(part, into).read()


@dataclass(slots=True, kw_only=True)
class _Row:
    """One line of the file, taken apart."""

    api: str
    call: int
    direction: Literal["forward", "backward"]
    what: str  # input, output, stack_info
    inside: str  # ".0", ".1.0", ""
    text: str
    fields: list[Any]


@dataclass(slots=True)
class _Reader:
    """Reads one file of one rank and step."""

    part: Part
    into: Recording
    step: Step = field(default_factory=lambda: Step({}, Sites(()), has_modules=False))
    waiting: list[Reading] = field(default_factory=list)  # of the current call, until its stack is known
    at: tuple[str, int, str] | None = None
    call: Call | None = None
    losses: dict[tuple[str, int], Reading] = field(default_factory=dict)
    loss: Reading | None = None
    lines: dict[tuple[str, int], Source] = field(default_factory=dict)
    n_bad: int = 0

    def read(self) -> None:
        """Read all of the file into the recording."""
        self.into.begin(self.part.rank, self.part.step)
        for row in self._rows():
            here = row.api, row.call, row.direction
            if here != self.at:
                self._flush(None)
                self._begin(row)
                self.at = here
            if row.what == "stack_info":
                self._flush(_own(row.fields[1]))
            else:
                self._tensor(row)
        self._flush(None)
        if self.n_bad:
            self.into.problem(
                f"{self.part.path.name} of step {self.part.step}: {self.n_bad:,} lines are of another kind"
            )
        if self.loss is not None:
            self.into.note("the loss is the value that backward began at")
            self.into.add(self.loss)
        value = value_of(self.loss.summary) if self.loss is not None else None
        self.into.end(StepRecord(step=self.part.step, n_microbatches=1, loss=value))

    def _begin(self, row: _Row) -> None:
        if row.direction == "backward" and not self.step.is_in_backward:
            found = self.losses.get((row.api, row.call))
            if found is not None and ("sum" not in found.lacks.split() or found.summary.n_nonfinite):
                order = found.order + 1
                self.loss = replace(found, phase="loss", site="loss", port="value", call=0, order=order)
        name = Name(kind="api", path=row.api, module="", direction=row.direction, call=row.call)
        self.call = self.step.place(row.text, name, has_gradient=False)

    def _flush(self, line: Source | None) -> None:
        if self.at is not None and self.waiting:
            key = self.at[0], self.at[1]
            if self.at[2] == "forward" and line is not None:
                self.lines[key] = line
            line = line or self.lines.get(key)
            for reading in self.waiting:
                self.into.add(replace(reading, source=line) if line is not None else reading)
        self.waiting = []

    def _tensor(self, row: _Row) -> None:
        digest, dtype, shape = row.fields[2], row.fields[3], shape_of(row.fields[4])
        if not isinstance(dtype, str) or dtype.startswith("<class"):
            return  # a number that was an argument
        if shape is None or self.call is None:
            self.n_bad += 1
            return
        numbers = row.fields[5] if isinstance(row.fields[5], list) else []
        norm = numbers[3] if len(numbers) > 3 else row.fields[7] if len(row.fields) > 7 else None
        high, low, mean = (numbers[i] if len(numbers) > i else None for i in range(3))
        kind = dtype.rpartition(".")[2].lower()[:40]
        summary, lacks = summary_of(math.prod(shape), high=high, low=low, mean=mean, norm=norm, dtype=kind)
        inside = row.inside or ".0"
        port = _PORTS[row.direction, row.what] + "".join(f"[{key}]" for key in inside.split(".")[1:])
        exact = self._values(row, shape, port)
        if exact is not None:
            summary, lacks = exact, ""
        order = self.call.order_in if row.what == "input" else self.call.order_out
        reading = Reading(
            step=self.part.step, microbatch=0, phase=self.call.phase, site=self.call.site, port=port, order=order,
            call=self.call.call, dtype=kind, shape=shape, summary=summary, digest=self._digest(digest, row.fields),
            lacks=lacks,
        )  # fmt: skip
        self.waiting.append(reading)
        if shape == () and row.direction == "forward" and port == "out[0]":
            self.losses[row.api, row.call] = reading

    def _digest(self, digest: Any, fields: list[Any]) -> int | None:
        text = digest if isinstance(digest, str) else fields[6] if len(fields) > 6 else None
        if not isinstance(text, str) or not re.fullmatch(r"[0-9a-fA-F]{8}", text):
            return None
        self.into.set_version("", digest="crc32")
        return int(text, 16)

    def _values(self, row: _Row, shape: tuple[int, ...], port: str) -> Summary | None:
        path = self.part.path.with_suffix("") / f"{row.text}.npy"
        if len(row.text) > 250 or "/" in row.text or not path.is_file():
            return None
        try:
            tensor = open_tensor(path)
            if tensor.shape != shape or self.call is None:
                return None
            exact = summary_of_values(tensor)
        except CheckpointError as error:
            self.into.problem(f"values are left out: {path.name}: {error.what}{f' ({error.why})' if error.why else ''}")
            return None
        self.into.keep(self.call.site, f"{port}#{self.call.call}" if self.call.call else port, 0, tensor)
        return exact

    def _rows(self) -> Iterator[_Row]:
        with self.part.path.open("rb") as file:
            while line := file.readline(_LINE_AT_MOST):
                row = _taken_apart(line)
                if row is None:
                    self.n_bad += bool(line.strip())
                else:
                    yield row


def _taken_apart(line: bytes) -> _Row | None:
    try:
        fields = writable_tree(json.loads(line))
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, list) or len(fields) < 2 or not isinstance(fields[0], str) or len(fields[0]) > 4096:
        return None
    found = _DOTS.fullmatch(fields[0]) or _BARS.fullmatch(fields[0])
    if found is None or (found[5] != "stack_info" and len(fields) < 6):
        return None
    return _Row(
        api=f"{found[1]}.{found[2]}", call=int(found[3]), direction=found[4],  # type: ignore[arg-type]
        what=found[5], inside=found[6], text=fields[0], fields=fields,
    )  # fmt: skip


def _own(frames: Any) -> Source | None:
    return own_line(_frame(frame) for frame in frames) if isinstance(frames, list) else None


def _frame(frame: Any) -> Source | None:
    if not isinstance(frame, list) or len(frame) < 4 or not all(isinstance(part, str) for part in frame[:4]):
        return None
    file, line, function, code = frame[:4]
    return source(file, int(line) if line.isdigit() and len(line) < 10 else 0, code, function)
