"""Our own runs: the step records of a recording, with the digest of each step's batch where one was kept."""

from __future__ import annotations

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions when it is imported)
import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.compare.curves.catalogue import Head, reader
from hypocenter.compare.curves.collector import Collector
from hypocenter.detect.replica_rows import BATCH_PREFIX
from hypocenter.record.layout import is_recording
from hypocenter.record.reader import RecordedRun, open_run


def _accepts(head: Head) -> float:
    return 1.0 if head.is_directory and is_recording(head.path) else 0.0


@reader("recording", accepts=_accepts, counts_from=0)
def read(path: Path, found: Collector) -> None:
    """A run directory: loss, gradient norm, learning rate and loss scale of the lowest rank that has a loss."""
    run = open_run(path)
    rank = _rank_with_a_loss(run)
    skipped: list[int] = []
    for of, record in run.step_records():
        if of != rank:
            continue
        entries = {
            "loss": record.loss, "grad_norm": record.grad_norm, "lr": record.lr, "loss_scale": record.loss_scale,
        }  # fmt: skip
        for name, value in entries.items():
            if value is not None:
                found.add(record.step, name, value)
        skipped += [record.step] if record.skipped else []
    if skipped:
        found.problem(f"{len(skipped):,} steps were skipped by the loss scaler, the first is {skipped[0]}")
    found.digests.update(_digests(run, rank))
    for problem in run.problems:
        found.problem(problem)


def _rank_with_a_loss(run: RecordedRun) -> int:
    """With pipeline stages only the last has a loss."""
    with_loss = {rank for rank, record in run.step_records() if record.loss is not None}
    return min(with_loss or run.ranks)


def _digests(run: RecordedRun, rank: int) -> dict[int, str]:
    """One digest per step, `names-values`: of the integer inputs of all its micro-batches, which are recorded at every
    step. The first part tells which inputs they were: only digests of the same inputs can be compared."""
    names: dict[int, hashlib._Hash] = {}
    values: dict[int, hashlib._Hash] = {}
    columns = ("step", "microbatch", "site", "digest")
    kept = run.scan(
        _is_batch, columns=columns, needs=("phase", "port", "site", "dtype", "digest", "replay"), ranks=[rank]
    )
    for _, table in kept:
        rows = table.select(list(columns)).sort_by([(name, "ascending") for name in columns[:3]])
        for step, microbatch, site, digest in zip(*(rows[name].to_pylist() for name in columns), strict=True):
            names.setdefault(step, hashlib.sha256()).update(f"{microbatch} {site}\n".encode())
            values.setdefault(step, hashlib.sha256()).update(f"{digest}\n".encode())
    return {step: f"{names[step].hexdigest()[:4]}-{found.hexdigest()[:16]}" for step, found in values.items()}


def _is_batch(batch: pa.RecordBatch) -> pa.Array:
    of_batch = pc.and_(pc.equal(batch["phase"], "data"), pc.starts_with(batch["site"], BATCH_PREFIX))
    whole = pc.match_substring_regex(batch["dtype"], "^(u?int|bool)")
    exact = pc.and_(pc.is_valid(batch["digest"]), pc.invert(batch["replay"]))
    return pc.fill_null(pc.and_(pc.and_(of_batch, whole), exact), False)
