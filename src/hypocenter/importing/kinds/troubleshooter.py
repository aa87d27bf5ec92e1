"""Folders of npy files that MindSpore's TroubleShooter saved from PyTorch and MindSpore: ts.save, ts.save_grad."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from hypocenter.compare.weights.checkpoint import CheckpointError
from hypocenter.importing.catalogue import Head, NotADumpError, importer
from hypocenter.importing.measured import measure
from hypocenter.importing.recording import Recording
from hypocenter.importing.tensor_file import open_tensor
from hypocenter.importing.troubleshooter_names import Saved, parse
from hypocenter.nouns import Reading, StepRecord

_DEPTH = 6
_MOST_FILES = 1_000_000
_MOST_RANK = 100_000
_STEP, _RANK = re.compile(r"step_?(\d{1,15})"), re.compile(r"rank_?(\d{1,6})")


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    path: Path
    rank: int
    step: int
    saved: Saved


def accepts(head: Head) -> float:
    """A folder of npy files, most of which are named as it names them."""
    names = [name.rpartition("/")[2] for name in head.names if name.endswith(".npy")]
    n_ours = sum(parse(name) is not None for name in names)
    return 0.5 if head.is_directory and n_ours and 2 * n_ours > len(names) else 0.0


@importer("troubleshooter", accepts=accepts)
def read(path: Path, into: Recording) -> None:
    """TroubleShooter's npy folders of PyTorch and MindSpore: ts.save, ts.save_grad, api_dump without its .pkl."""
    files, n_others = _found(path, into)
    if not files:
        raise NotADumpError("no file of TroubleShooter's in it", where=str(path), fix="name the folder of npy files")
    if n_others:
        into.problem(f"{n_others:,} npy files with names of another kind are left out")
    into.world_size = max(file.rank for file in files) + 1
    into.set_version("", digest="crc32")
    into.note("a site is the name that the program saved a value under; what is not saved is not known")
    for (rank, step), of_step in groupby(files, key=lambda f: (f.rank, f.step)):
        _step(list(of_step), rank, step, into)


def _found(path: Path, into: Recording) -> tuple[list[_File], int]:
    files: list[_File] = []
    n_others = 0
    has_steps = False
    for here, below, names in os.walk(path):
        below.sort()
        inside = Path(here).resolve().parts
        if len(Path(here).relative_to(path).parts) >= _DEPTH:
            below.clear()
        rank, step = _number(_RANK, inside), _number(_STEP, inside)
        has_steps |= step is not None
        for name in names:
            saved = parse(name)
            if name.endswith(".npy") and saved is None:
                n_others += 1
            elif saved is not None and (Path(here) / name).is_file():
                files.append(
                    _File(path=Path(here) / name, rank=min(rank or 0, _MOST_RANK), step=step or 0, saved=saved)
                )
        if len(files) > _MOST_FILES:
            into.problem(f"files after the first {_MOST_FILES:,} are left out")
            break
    if files and not has_steps:
        into.note("steps cannot be told: a name that was saved again is another call of the same step")
    if any(file.saved.is_api for file in files):
        into.note("of api_dump there is no .pkl: the order of calls of different APIs is not known")
    return sorted(files, key=lambda f: (f.rank, f.step, f.saved.number, f.path.name)), n_others


def _number(pattern: re.Pattern[str], parts: tuple[str, ...]) -> int | None:
    found = (pattern.fullmatch(part) for part in reversed(parts))
    return next((int(match[1]) for match in found if match), None)


def _step(files: list[_File], rank: int, step: int, into: Recording) -> None:
    into.begin(rank, step)
    calls: Counter[tuple[str, str, str]] = Counter()
    n_bad_grads = 0
    for order, file in enumerate(files):
        saved = file.saved
        key = saved.phase, saved.site, saved.port
        call = saved.number if saved.is_api else calls[key]
        calls[key] += 1
        try:
            tensor = open_tensor(file.path)
            measured = measure(tensor)
        except CheckpointError as error:
            into.problem(f"values are left out: {file.path}: {error.what}{f' ({error.why})' if error.why else ''}")
            continue
        is_widened = saved.dtype == "bfloat16" and tensor.dtype == "float32"  # which loses nothing
        reading = Reading(
            step=step, microbatch=0, phase=saved.phase, site=saved.site, port=saved.port, order=order, call=call,
            dtype=saved.dtype if is_widened else tensor.dtype, shape=tensor.shape, summary=measured.summary,
            digest=None if is_widened else measured.crc32,
        )  # fmt: skip
        into.add(reading)
        n_bad_grads += saved.phase == "grad" and bool(measured.summary.n_nonfinite)
        if saved.phase == "grad":
            owner, _, name = saved.site.rpartition(".")
            into.keep(owner, f"{name}.grad", 0, tensor)
        else:
            into.keep(saved.site, f"{saved.port}#{call}" if call else saved.port, 0, tensor)
    into.end(StepRecord(step=step, n_microbatches=1, n_bad_grads=n_bad_grads))
