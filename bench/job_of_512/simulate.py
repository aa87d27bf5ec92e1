"""What each rank of the job would have recorded at level sentinel, written by the real writer."""

from __future__ import annotations

import hashlib
import math
import os
import struct
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from pathlib import Path

import msgspec

from bench.job_of_512.job import Job, Parameter
from hypocenter.diagnose.evidence import Evidence
from hypocenter.nouns import Attempt, Phase, Reading, StepRecord, Summary
from hypocenter.record import writer as recording
from hypocenter.record.layout import bundle_directory, rank_directory
from hypocenter.record.place_file import write_place
from hypocenter.record.run_file import finish_run, start_run

_NONE = Summary()
_STATES = ("exp_avg", "exp_avg_sq")
_SKETCH = 16  # numbers of the small sketch beside a digest


def write_job(directory: Path, job: Job, processes: int = 2) -> None:
    """Write the whole recording: every rank but the missing one, then the damage."""
    faults = job.faults
    start_run(directory, ["torchrun", "pretrain_gpt.py"], {"level": "sentinel"}, job.ranks, {"torch": "simulated"})
    ranks = [rank for rank in range(job.ranks) if rank != faults.missing_rank]
    with ProcessPoolExecutor(processes) as pool:
        list(pool.map(partial(write_rank, directory, job), ranks, chunksize=4))
    _cut(directory, faults.cut_rank)
    finish_run(directory, "failed", 1)


def write_rank(directory: Path, job: Job, rank: int) -> None:
    """Write one rank; the one that is going to be cut is left unsealed."""
    faults, at = job.faults, job.coords(rank)
    attempt = Attempt(host=f"node{rank // 8:03d}", pid=os.getpid(), started="2026-01-01T00:00:00+00:00")
    _require(write_place(directory, job.place(rank), attempt))
    recording.STEPS_OF_BLOCK = 1  # a file that is cut is to lose some of its steps, not all that are in its one batch
    writer = recording.Writer(directory, rank=rank, warn=_require)
    told = False
    for step in range(job.steps):
        rows = list(rank_rows(job, rank, step))
        bad = [row for row in rows if row.port == "grad" and row.summary.n_nan]
        finding = ""
        if bad and not told and at.pp == job.coords(faults.nan_rank).pp and at.tp == job.coords(faults.nan_rank).tp:
            finding, told = f"step-{step:06d}-nonfinite-grad", True
            _bear_witness(directory, job, rank, step, finding)
        local = math.sqrt(sum(row.summary.sumsq for row in rows if row.port == "grad"))
        writer.write(
            rows,
            StepRecord(
                step=step, n_microbatches=1, loss=_loss(job, rank, step), grad_norm=math.nan if bad else local,
                lr=1e-4, step_ms=900.0, tap_ms=3.0, n_bad_grads=len(bad), finding=finding,
            ),
        )  # fmt: skip
    writer.close(seal=rank != faults.cut_rank)


def rank_rows(job: Job, rank: int, step: int) -> list[Reading]:
    """The readings of one step of one rank."""
    at = job.coords(rank)
    tp, pp, dp = at.tp or 0, at.pp or 0, at.dp or 0
    parameters = job.parameters(pp)
    order = iter(range(1 << 30))
    row = partial(_row, step, order.__next__)
    loss = _loss(job, rank, step)
    rows = [row("data", "batch.tokens", "digest", digest=_number("batch", dp, step)), *_streams(row, step, tp, dp)]
    if loss is not None:
        rows.append(row("loss", "loss", "value", summary=_scalar(loss)))
    rows += [_local(row, job, parameter, rank, step) for parameter in parameters]
    rows += [_reduced(row, job, parameter, rank, step) for parameter in parameters]
    rows.append(row("grad", "grad_norm", "value", summary=_scalar(1.0)))
    rows.append(row("optimizer", "lr", "value", summary=_scalar(1e-4)))
    rows.append(row("optimizer", "clip_coef", "value", summary=_scalar(0.5)))
    if step % job.digest_every == 0:
        for parameter in parameters:
            rows += _digests(row, job, parameter, rank, step)
    return rows


def _streams(row: Callable[..., Reading], step: int, tp: int, dp: int) -> list[Reading]:
    """The default stream is the same over tp; Megatron's own differs over tp."""
    names = {"rng.cpu": ("cpu", dp), "rng.megatron.model-parallel-rng": ("mp", dp, tp)}
    return [row("data", name, "state", digest=_number(*key, step)) for name, key in names.items()]


def _local(row: Callable[..., Reading], job: Job, parameter: Parameter, rank: int, step: int) -> Reading:
    faults, is_bad = job.faults, step > job.faults.nan_step
    if rank == faults.nan_rank and step == faults.nan_step and parameter.name == faults.nan_param:
        is_bad = True
    jitter = 1.0 + 0.2 * _share("local", parameter.name, rank, step)
    return _norm_row(row, job, parameter, "grad_local", _size(job, parameter, rank, step) * jitter, is_bad=is_bad)


def _reduced(row: Callable[..., Reading], job: Job, parameter: Parameter, rank: int, step: int) -> Reading:
    return _norm_row(
        row, job, parameter, "grad", _size(job, parameter, rank, step), is_bad=_is_nan(job, parameter, rank, step)
    )


def _norm_row(
    row: Callable[..., Reading], job: Job, parameter: Parameter, port: str, norm: float, *, is_bad: bool
) -> Reading:
    shape = parameter.local_shape(job.tp)
    summary = Summary(n=math.prod(shape), sumsq=0.0 if is_bad else norm * norm, n_nan=int(is_bad))
    return row("grad", parameter.name, port, dtype="bfloat16", shape=shape, summary=summary)


def _is_nan(job: Job, parameter: Parameter, rank: int, step: int) -> bool:
    """After the reduction: of all replicas of the bad gradient; after the update: everywhere."""
    faults = job.faults
    if step != faults.nan_step:
        return step > faults.nan_step
    here, there = job.coords(rank), job.coords(faults.nan_rank)
    return parameter.name == faults.nan_param and (here.pp, here.tp) == (there.pp, there.tp)


def _digests(row: Callable[..., Reading], job: Job, parameter: Parameter, rank: int, step: int) -> list[Reading]:
    faults, shape = job.faults, parameter.local_shape(job.tp)
    tp = (job.coords(rank).tp or 0) if parameter.split is not None else 0
    is_drifted = rank == faults.drift_rank and step >= faults.drift_step and parameter.name == faults.drift_param
    fields = {"dtype": "bfloat16", "shape": shape, "placement": parameter.placement()}
    plain = Summary(n=math.prod(shape))
    key = (parameter.name, tp, step, is_drifted)
    sketch = tuple(_share("sketch", parameter.name, tp, step, i) for i in range(_SKETCH))
    norm = _size(job, parameter, rank, step)
    of_grad = Summary(n=plain.n, sumsq=norm * norm, sketch=sketch)
    if _is_nan(job, parameter, rank, step):
        of_grad = Summary(n=plain.n, n_nan=1)
    return [
        row("param", parameter.name, "replica", digest=_number("param", *key), summary=plain, **fields),
        row("grad", parameter.name, "replica.grad", digest=_number("grad", *key[:3]), summary=of_grad, **fields),
        *(
            row("optimizer", parameter.name, f"replica.{s}", digest=_number(s, *key), summary=plain, **fields)
            for s in _STATES
        ),
    ]


def _row(
    step: int, order: Callable[[], int], phase: Phase, site: str, port: str, *, digest: int | None = None,
    summary: Summary = _NONE, dtype: str = "float32", shape: tuple[int, ...] = (), placement: str = "",
) -> Reading:  # fmt: skip
    return Reading(
        step=step, microbatch=0, phase=phase, site=site, port=port, order=order(), dtype=dtype, shape=shape,
        summary=summary, digest=digest, placement=placement,
    )  # fmt: skip


def _loss(job: Job, rank: int, step: int) -> float | None:
    """Only the last stage has one."""
    at = job.coords(rank)
    if at.pp != job.pp - 1:
        return None
    return math.nan if step > job.faults.nan_step else 10.0 * math.exp(-step / 30) + 0.01 * _share("loss", at.dp, step)


def _size(job: Job, parameter: Parameter, rank: int, step: int) -> float:
    """The norm of a reduced gradient: equal on all replicas."""
    tp = (job.coords(rank).tp or 0) if parameter.split is not None else 0
    return 0.01 + 0.01 * _share("grad", parameter.name, tp, step)


def _scalar(value: float) -> Summary:
    if not math.isfinite(value):
        return Summary(n=1, n_nan=1)
    return Summary(n=1, n_hist=1, min=value, max=value, absmin=abs(value) or None, absmax=abs(value), sum=value,
                   sumsq=value * value)  # fmt: skip


@lru_cache(maxsize=1 << 16)
def _number(*key: object) -> int:
    """64 bits that depend on the key alone."""
    return struct.unpack("<q", hashlib.blake2b(repr(key).encode(), digest_size=8).digest())[0]


def _share(*key: object) -> float:
    """A number in [0, 1) that depends on the key alone."""
    return (_number(*key) & (2**53 - 1)) / 2**53


def _bear_witness(directory: Path, job: Job, rank: int, step: int, name: str) -> None:
    """The evidence of a rank whose reduced gradient went bad, and that could not replay alone."""
    faults = job.faults
    evidence = Evidence(
        id=name, step=step, rank=rank, world_size=job.ranks, bad_params=(faults.nan_param,),
        n_params=len(job.parameters(job.coords(rank).pp or 0)), why_not="the step communicates with other ranks",
        healthy_steps=step,
    )  # fmt: skip
    folder = bundle_directory(directory, rank, name)
    folder.mkdir(parents=True)
    (folder / "evidence.json").write_bytes(msgspec.json.encode(evidence))


def _cut(directory: Path, rank: int) -> None:
    for path in rank_directory(directory, rank).glob("events-*.arrow"):
        os.truncate(path, path.stat().st_size * 4 // 5)


def _require(problem: str) -> None:
    if problem:
        raise RuntimeError(problem)
