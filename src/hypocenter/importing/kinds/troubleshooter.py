"""Folders of npy files that MindSpore's TroubleShooter saved from PyTorch and MindSpore: ts.save, ts.save_grad.

What the names of TroubleShooter's npy files say.

Of `ts.save` and `ts.save_grad` (and of MindSpore's TensorDump, which they call) there are two forms:
`3_dense.x1_backward.npy`, number first, and since 2023-11 `dense.x1_backward_float32_3.npy`, format and number last.
Of `api_dump` it is `Functional_pad_0_forward_input.0.npy`.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

from hypocenter.compare.weights.checkpoint import CheckpointError
from hypocenter.importing.catalogue import Head, NotADumpError, importer
from hypocenter.importing.recording import Recording
from hypocenter.importing.tensor_file import measure, open_tensor
from hypocenter.nouns import Reading, StepRecord

_DEPTH = 6
_MOST_FILES = 1_000_000
_MOST_RANK = 100_000
_STEP, _RANK = re.compile(r"step_?(\d{1,15})"), re.compile(r"rank_?(\d{1,6})")
_NAME_AT_MOST = 1024  # characters
_FIRST = re.compile(r"(\d{1,15})_(.+)\.npy", re.DOTALL)
_LAST = re.compile(r"(.+)_((?:bfloat|float|int|uint|complex)\d{1,3}|bool_?)_(\d{1,15})\.npy", re.DOTALL | re.IGNORECASE)
_API = re.compile(
    r"([A-Z][A-Za-z]{0,30})_(.+)_(\d{1,12})_(forward|backward)_(input|output)((?:\.\w{1,100}){0,16})\.npy", re.DOTALL
)
_BACKWARD = "_backward"  # what save_grad puts behind a name
_GRADIENTS = re.compile(r"(?:.*_)?(?:[a-z]{2,5}_)?grads?(?:ients?)?", re.IGNORECASE | re.DOTALL)
_OLD_GRADIENTS = re.compile(r"((?:.*_)?grads)_(.+?)(?:_\d{1,9})?", re.IGNORECASE | re.DOTALL)
_PORTS = {("forward", "input"): "in", ("forward", "output"): "out", ("backward", "input"): "grad_out",
          ("backward", "output"): "grad_in"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    path: Path
    rank: int
    step: int
    saved: Saved


def accepts(head: Head) -> float:
    """Return how sure it is a folder of npy files, most of them named as TroubleShooter names them (0 to 1)."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A file's name, taken apart."""

    site: str
    port: str
    phase: Literal["forward", "backward", "grad"]
    number: int  # counts all files in the order in which they were saved; of an API its calls
    dtype: str = ""  # as labelled
    is_api: bool = False


def parse(name: str) -> Saved | None:
    """Take a file's name apart; None for what is none of TroubleShooter's."""
    if len(name) > _NAME_AT_MOST:
        return None
    api = _API.fullmatch(name)
    if api is not None:
        places = "".join(f"[{part}]" for part in api[6].split(".")[1:]) or "[0]"
        return Saved(
            site=f"{api[1]}.{api[2]}", port=f"{_PORTS[api[4], api[5]]}{places}",
            phase="forward" if api[4] == "forward" else "backward", number=int(api[3]), is_api=True,
        )  # fmt: skip
    last = _LAST.fullmatch(name)
    if last is not None:
        return _saved(last[1], int(last[3]), last[2].lower().rstrip("_"))
    first = _FIRST.fullmatch(name)
    return _saved(first[2], int(first[1]), "") if first is not None else None


def _saved(text: str, number: int, dtype: str) -> Saved:
    is_backward = text.endswith(_BACKWARD) and len(text) > len(_BACKWARD)
    text = text[: -len(_BACKWARD)] if is_backward else text
    name, _, key = text.partition(".")
    old = _OLD_GRADIENTS.fullmatch(text) if not _GRADIENTS.fullmatch(name) else None
    name, key = (old[1], old[2]) if old is not None else (name, key)
    if _GRADIENTS.fullmatch(name) and not is_backward:  # of gradients that were handed over by the program
        site = f"{name}.{key}" if key.isdigit() else key or name
        return Saved(site=site, port="grad", phase="grad", number=number, dtype=dtype)
    port = "grad_out" if is_backward else "out"
    return Saved(
        site=name or text, port=f"{port}[{key or 0}]", phase="backward" if is_backward else "forward", number=number,
        dtype=dtype,
    )  # fmt: skip
