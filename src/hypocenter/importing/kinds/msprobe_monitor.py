"""The training monitor of msprobe: CSV files of activations, gradients, parameters and optimizer state."""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hypocenter.importing.catalogue import Head, NotADumpError, importer
from hypocenter.importing.recording import Recording
from hypocenter.importing.statistics import shape_of, summary_of
from hypocenter.nouns import Phase, Reading, StepRecord, replace

_FILE = re.compile(r"([a-z_]+)_(\d{1,12})-(\d{1,12})\.csv")
_RANK = re.compile(r"(?:.*-)?rank[_-]?(\d{1,6})(?:-.*)?")
_PORT = re.compile(r"(?:(.*)\.)?(input|output)(?:_(\d{1,6}))?", re.DOTALL)
_KINDS: dict[str, tuple[Phase, str]] = {
    "param_origin": ("param", "value"), "actv": ("forward", ""), "actv_grad": ("backward", ""),
    "grad_unreduced": ("grad", "unreduced"), "grad_reduced": ("grad", "grad"), "exp_avg": ("optimizer", "exp_avg"),
    "exp_avg_sq": ("optimizer", "exp_avg_sq"), "param_updated": ("param", "updated"),
}  # fmt: skip
_COLUMNS = {"name", "step"}
_LINE_AT_MOST = 1 << 20  # characters of one row
_FIELD_AT_MOST = 1 << 18
_APART = 1 << 40  # between the orders of two kinds
_MOST_STEPS = 10_000_000


def accepts(head: Head) -> float:
    """Return how sure it is a CSV with the monitor's columns, or a folder with files so named (0 to 1)."""
    if head.is_directory:
        return 0.8 if any(_kind(name.rpartition("/")[2]) for name in head.names) else 0.0
    first = head.start[:1000].partition(b"\n")[0]
    return 0.9 if first.startswith(b"vpp_stage,name,step") else 0.0


@importer("msprobe-monitor", accepts=accepts)
def read(path: Path, into: Recording) -> None:
    """msprobe's training monitor: actv, actv_grad, grad_*, param_*, exp_avg* in CSV files, a folder per rank."""
    ranks = _files(path)
    if not ranks:
        raise NotADumpError("no CSV file of the monitor in it", where=str(path), fix="name the folder of actv_*.csv")
    into.world_size = max(ranks) + 1
    into.note("numbers were written with six decimals; histograms and zeros are not known")
    into.note("gradients of inputs that have none were written as nan, and are left out")
    for rank, files in sorted(ranks.items()):
        _Reader(rank, into).read(files)


@dataclass(slots=True)
class _Reader:
    """Reads the files of one rank."""

    rank: int
    into: Recording
    n_microbatches: dict[int, int] = field(default_factory=dict)  # by step
    bad: dict[int, set[str]] = field(default_factory=dict)  # parameters with a bad gradient, by step
    n_rows: int = 0
    n_bad: int = 0

    def read(self, files: list[tuple[str, Path]]) -> None:
        """Read all files into the recording, with step records at the end."""
        for kind, path in files:
            for row in _rows(path, self.into):
                reading = self._reading(kind, row)
                if reading is not None:
                    self._add(reading)
            if self.n_bad:
                self.into.problem(f"{path.name}: {self.n_bad:,} rows cannot be read")
                self.n_bad = 0
        for step in sorted(self.n_microbatches):
            self.into.begin(self.rank, step)
            self.into.end(
                StepRecord(step=step, n_microbatches=self.n_microbatches[step], n_bad_grads=len(self.bad.get(step, ())))
            )

    def _add(self, reading: Reading) -> None:
        step = reading.step
        if step not in self.n_microbatches and len(self.n_microbatches) >= _MOST_STEPS:
            self.n_bad += 1
            return
        self.n_microbatches[step] = max(self.n_microbatches.get(step, 1), reading.microbatch + 1)
        if reading.phase == "grad" and reading.summary.n_nonfinite:
            self.bad.setdefault(step, set()).add(reading.site)
        self.into.begin(self.rank, step)
        self.into.add(reading)

    def _reading(self, kind: str, row: Mapping[str, str]) -> Reading | None:
        step, batch = _whole(row.get("step")), _whole(row.get("micro_step") or "0")
        shape = _shape(row.get("shape"))
        if row.get("shape") in ("nan", "", None):
            return None
        if step is None or batch is None or shape is None:
            self.n_bad += 1
            return None
        self.n_rows += 1
        dtype = (row.get("dtype") or "").rpartition(".")[2][:40]
        high, low, mean, norm = (_real(row.get(name)) for name in ("max", "min", "mean", "norm"))
        summary, lacks = summary_of(
            math.prod(shape), high=high, low=low, mean=mean, norm=norm, dtype=dtype, is_rounded=True
        )
        n_nan = _whole(row.get("nans"))
        if n_nan is not None and 0 <= n_nan <= summary.n:
            summary = replace(summary, n_nan=max(n_nan, summary.n_nan))
        phase, port = _KINDS[kind]
        site = (row.get("name") or "")[:4096]
        if not port:
            site, port = _of_module(site, is_gradient=phase == "backward")
        return Reading(
            step=step, microbatch=min(batch, 1 << 30), phase=phase, site=site, port=port,
            order=list(_KINDS).index(kind) * _APART + self.n_rows, dtype=dtype, shape=shape, summary=summary,
            lacks=lacks,
        )  # fmt: skip


def _of_module(name: str, *, is_gradient: bool) -> tuple[str, str]:
    """Return site and port of a name: `tok.output` is `tok`, `out[0]`; `.input_1` is the model's second input."""
    found = _PORT.fullmatch(name)
    if found is None:
        return name, "grad_out[0]" if is_gradient else "out[0]"
    side = "in" if found[2] == "input" else "out"
    return found[1] or "", f"{'grad_' if is_gradient else ''}{side}[{int(found[3] or 0)}]"


def _kind(name: str) -> str:
    found = _FILE.fullmatch(name)
    return found[1] if found is not None and found[1] in _KINDS else ""


def _files(path: Path) -> dict[int, list[tuple[str, Path]]]:
    """Return the files by rank, sorted by kind and first step."""
    found: dict[int, list[tuple[int, int, str, Path]]] = {}
    listed = [path] if path.is_file() else [Path(f) / n for f, _, names in os.walk(path) for n in names]
    for file in listed:
        kind = _kind(file.name)
        if kind:
            first = int(_FILE.fullmatch(file.name)[2])  # type: ignore[index]
            found.setdefault(_rank(file), []).append((list(_KINDS).index(kind), first, kind, file))
    return {rank: [(kind, file) for _, _, kind, file in sorted(files)] for rank, files in found.items()}


def _rank(file: Path) -> int:
    for part in reversed(file.absolute().parts[:-1]):
        match = _RANK.fullmatch(part)
        if match:
            return int(match[1])
    return 0


def _rows(path: Path, into: Recording) -> Iterator[dict[str, str]]:
    csv.field_size_limit(_FIELD_AT_MOST)
    with path.open("r", encoding="utf-8", errors="replace", newline="") as file:
        reader = csv.reader(iter(lambda: file.readline(_LINE_AT_MOST), ""))
        try:
            header = next(reader, [])
            if not set(header) >= _COLUMNS:
                into.problem(f"{path.name} is left out: it has no columns {', '.join(sorted(_COLUMNS))}")
                return
            for row in reader:
                if len(row) == len(header):
                    yield dict(zip(header, row, strict=True))
                elif row:
                    into.problem(f"{path.name}: line {reader.line_num} has {len(row)} of {len(header)} fields")
        except csv.Error as error:
            into.problem(f"{path.name}: cut off at line {reader.line_num}: {error}")


def _whole(text: str | None) -> int | None:
    try:
        value = float(text or "nan")
    except ValueError:
        return None
    return int(value) if math.isfinite(value) and value == int(value) and 0 <= value < 1 << 53 else None


def _real(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _shape(text: str | None) -> tuple[int, ...] | None:
    try:
        return shape_of(json.loads(text or ""))
    except (ValueError, RecursionError):
        return None
