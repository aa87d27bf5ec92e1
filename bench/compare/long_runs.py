"""Write recordings of long runs as the real writer lays them out, without running anything.

The first step is made of Readings and goes through `readings_batch`; later steps are that batch with other numbers,
appended to the same kind of stream and sealed as at the end of a run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from hypocenter.nouns import Phase, Reading, StepRecord, Summary
from hypocenter.record.layout import FORMAT, rank_directory
from hypocenter.record.schema import READINGS, STEPS, readings_batch, steps_batch
from hypocenter.record.seal import seal_stream
from hypocenter.record.stream import Stream

_PARTS = ("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.down")
_NUMBERS = ("min", "max", "absmax", "sum", "sumsq")


def write_run(out: Path, *, n_sites: int, n_steps: int, drift_from: int | None = None, sealed: bool = True) -> Path:
    """Write one recording of `n_sites` rows a step.

    Args:
        out: its directory.
        n_sites, n_steps: rows of a step, and steps.
        drift_from: from this step on the last quarter of the sites has other values; the same seed otherwise.
        sealed: turn the stream into Parquet as a clean end does.
    """
    folder = rank_directory(out, 0)
    folder.mkdir(parents=True)
    run = {"format": FORMAT, "name": out.name, "world_size": 1, "status": "finished", "command": ["generated"]}
    (out / "run.json").write_text(json.dumps(run), encoding="utf-8")
    first = readings_batch(_readings(n_sites))
    meta = {"hypocenter.format": str(FORMAT), "hypocenter.rank": "0", "hypocenter.started_ns": "1"}
    events = Stream(folder / "events-bench-1.arrow", READINGS, meta)
    steps = Stream(folder / "steps-bench-1.arrow", STEPS, meta)
    random = np.random.default_rng(0)
    for step in range(n_steps):
        factors = 1.0 + 1e-3 * random.standard_normal(n_sites)
        if drift_from is not None and step >= drift_from:
            factors[-n_sites // 4 :] *= 1.01
        events.append(_later(first, step, factors))
        steps.append(steps_batch([StepRecord(step=step, loss=3.0 / (1 + step), lr=1e-3)]))
    for stream in (events, steps):
        stream.close()
        if sealed:
            seal_stream(stream.file.path)
    return out


def _readings(n: int) -> list[Reading]:
    spots = _spots(n)
    random = np.random.default_rng(1)
    norms = random.uniform(0.5, 2.0, n)
    hist = tuple(int(x) for x in random.integers(0, 1000, 16))
    return [
        Reading(
            step=0, microbatch=0, phase=phase, site=site, port=port, order=order, dtype="float32", module="Linear",
            shape=(2, 128, 64),
            summary=Summary(
                n=16384, n_hist=16384, min=-3.0, max=3.0, absmin=1e-6, absmax=3.0, sum=float(norms[order]),
                sumsq=float(norms[order] ** 2), hist_first=-20, hist=hist,
            ),
        )
        for order, (phase, site, port) in enumerate(spots)
    ]  # fmt: skip


def _spots(n: int) -> Sequence[tuple[Phase, str, str]]:
    found: list[tuple[Phase, str, str]] = []
    kinds: tuple[tuple[Phase, str], ...] = (("forward", "in[0]"), ("forward", "out[0]"), ("backward", "grad_out[0]"))
    layer = 0
    while len(found) < n:
        for part in _PARTS:
            found += [(phase, f"model.layers.{layer}.{part}", port) for phase, port in kinds]
        layer += 1
    return sorted(found[:n], key=lambda spot: spot[0] == "backward")


def _later(first: pa.RecordBatch, step: int, factors: np.ndarray) -> pa.RecordBatch:
    columns: list[pa.Array] = []
    for field, column in zip(first.schema, first.columns, strict=True):
        if field.name == "step":
            columns.append(pa.array(np.full(len(factors), step, np.int64)))
        elif field.name in _NUMBERS:
            power = 2 if field.name == "sumsq" else 1
            columns.append(pa.array(column.to_numpy() * factors**power))
        else:
            columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=first.schema)
