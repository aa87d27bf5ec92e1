"""Our own runs: the step records of a recording, with the digest of each step's batch where one was kept."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.compare.curves.catalogue import Head, reader
from hypocenter.compare.curves.collector import Collector
from hypocenter.detect.replica_rows import BATCH_PREFIX
from hypocenter.diagnose.logical import READS
from hypocenter.diagnose.logical_norm import job_grad_norms
from hypocenter.record.layout import is_recording
from hypocenter.record.reader import RecordedRun, open_run


def _accepts(head: Head) -> float:
    return 1.0 if head.is_directory and is_recording(head.path) else 0.0


@reader("recording", accepts=_accepts, counts_from=0)
def read(path: Path, found: Collector) -> None:
    """A run directory: loss, gradient norm, learning rate and loss scale.

    Of several ranks: the mean of the losses of ranks that have data of their own, and the norm of the gradients of all
    logical parameters, as one process would have them.
    """
    run = open_run(path, found.on)
    speakers = _speakers(run)
    records = [(rank, record) for rank, record in run.step_records() if rank in speakers]
    skipped: list[int] = []
    losses: dict[int, list[float]] = defaultdict(list)
    for rank, record in records:
        if record.loss is not None:
            losses[record.step].append(record.loss)
        if rank != speakers[0]:
            continue
        entries = {"lr": record.lr, "loss_scale": record.loss_scale}
        if len(run.ranks) == 1:
            entries["grad_norm"] = record.grad_norm
        for name, value in entries.items():
            if value is not None:
                found.add(record.step, name, value)
        skipped += [record.step] if record.skipped else []
    _add_losses(losses, len(speakers), found)
    if len(run.ranks) > 1:
        _add_grad_norms(run, found)
    if skipped:
        found.problem(f"{len(skipped):,} steps were skipped by the loss scaler, the first is {skipped[0]}")
    found.digests.update(_digests(run, speakers))
    for problem in (*run.problems, *run.rolled_up):
        found.problem(problem)


def _speakers(run: RecordedRun) -> list[int]:
    """Return one rank for each part of the batch, the lowest with a loss (of pipeline stages only the last has one)."""
    with_loss = sorted({rank for rank, record in run.step_records() if record.loss is not None})
    by_part: dict[object, int] = {}
    for rank in with_loss:
        place = run.places.get(rank)
        part = (place.coords.dp, place.coords.cp) if place is not None and place.source else rank
        by_part.setdefault(part, rank)
    return sorted(by_part.values()) or run.ranks[:1]


def _add_losses(losses: Mapping[int, Sequence[float]], n_parts: int, found: Collector) -> None:
    """Add the mean loss over the parts of the batch at each step at which every part is known."""
    for step, parts in losses.items():
        if len(parts) == n_parts:
            found.add(step, "loss", math.fsum(parts) / n_parts)
        else:
            found.problem("the loss of a step was left out: not every rank that has data of its own has recorded it")


def _add_grad_norms(run: RecordedRun, found: Collector) -> None:
    if run.run.imported is not None:  # a dump's gradients are those before any reduction, and some norms are not known
        return
    for norm in job_grad_norms(run.scan(_is_grad, columns=READS), run.places):
        if norm.norm is not None and not norm.is_lower_bound and not norm.is_upper_bound:
            found.add(norm.step, "grad_norm", norm.norm)
        else:
            found.problem(f"the gradient norm of a step was left out: {norm.why_not}")


def _is_grad(batch: pa.RecordBatch) -> pa.Array:
    return pc.equal(batch["phase"], "grad")


def _digests(run: RecordedRun, ranks: Sequence[int]) -> dict[int, str]:
    """Return one digest per step, `names-values`: of the integer inputs of all its micro-batches, which are recorded
    at every step. The first part tells which inputs they were, and over how many ranks: only digests of the same
    inputs can be compared.
    """
    part = {rank: n for n, rank in enumerate(ranks)}
    names: dict[int, hashlib._Hash] = {}
    values: dict[int, hashlib._Hash] = {}
    columns = ("step", "microbatch", "site", "digest")
    kept = run.scan(
        _is_batch, columns=columns, needs=("phase", "port", "site", "dtype", "digest", "replay"), ranks=ranks
    )
    for rank, table in kept:
        rows = table.select(list(columns)).sort_by([(name, "ascending") for name in columns[:3]])
        for step, microbatch, site, digest in zip(*(rows[name].to_pylist() for name in columns), strict=True):
            names.setdefault(step, hashlib.sha256()).update(f"{part[rank]} {microbatch} {site}\n".encode())
            values.setdefault(step, hashlib.sha256()).update(f"{digest}\n".encode())
    return {step: f"{names[step].hexdigest()[:4]}-{found.hexdigest()[:16]}" for step, found in values.items()}


def _is_batch(batch: pa.RecordBatch) -> pa.Array:
    of_batch = pc.and_(pc.equal(batch["phase"], "data"), pc.starts_with(batch["site"], BATCH_PREFIX))
    whole = pc.match_substring_regex(batch["dtype"], "^(u?int|bool)")
    exact = pc.and_(pc.is_valid(batch["digest"]), pc.invert(batch["replay"]))
    return pc.fill_null(pc.and_(pc.and_(of_batch, whole), exact), False)
