"""Our own runs: the step records of a recording, with the digest of each step's batch where one was kept."""

from __future__ import annotations

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions when it is imported)
import hashlib
from pathlib import Path

import pyarrow.compute as pc

from hypocenter.compare.curves.catalogue import Head, reader
from hypocenter.compare.curves.collector import Collector
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
    """One digest per step: of those of all inputs of all its micro-batches, in their order."""
    hashes: dict[int, hashlib._Hash] = {}
    columns = ("step", "microbatch", "port", "digest")
    kept = run.scan(
        lambda batch: pc.and_(pc.equal(batch["phase"], "data"), pc.is_valid(batch["digest"])),
        columns=columns, needs=("phase", "digest"), ranks=[rank],
    )  # fmt: skip
    for _, table in kept:
        rows = table.select(list(columns)).sort_by([(name, "ascending") for name in columns[:3]])
        for step, microbatch, port, digest in zip(*(rows[name].to_pylist() for name in columns), strict=True):
            hashes.setdefault(step, hashlib.sha256()).update(f"{microbatch} {port} {digest}\n".encode())
    return {step: found.hexdigest()[:16] for step, found in hashes.items()}
