"""Rows of a recording for headroom: made of values, as a table."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import torch

from hypocenter.formats import find_format
from hypocenter.nouns import Reading, StepRecord, Summary
from hypocenter.record.schema import readings_batch
from hypocenter.report.headroom.answer import Answer, answers
from hypocenter.summary.reducers.numpy import summarize


def row(values: np.ndarray | Summary, **more: object) -> Reading:
    summary = values if isinstance(values, Summary) else summarize(values)
    port = "grad_in[0]" if more.get("phase") == "backward" else "out[0]"
    given = {"step": 0, "phase": "forward", "site": "a", "port": port, "order": 0, "dtype": "bfloat16"} | more
    return Reading(microbatch=0, summary=summary, **given)  # type: ignore[arg-type]


def table(rows: Iterable[Reading]) -> pa.Table:
    batch = pa.Table.from_batches([readings_batch(list(rows))])
    return batch.append_column("rank", pa.array([0] * batch.num_rows, pa.int32()))


def ask(rows: Iterable[Reading], scale: float | None = None, *records: StepRecord, form: str = "fp16") -> Answer:
    return answers(table(rows), [(0, record) for record in records], (find_format(form),), scale=scale)[0]


def spread(seed: int, low: float, high: float, n: int = 3000) -> np.ndarray:
    """Values of 8 bits over many octaves, as bfloat16 has them, and zeros."""
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.choice([-1.0, 1.0], n) * 2.0 ** rng.uniform(low, high, n)).bfloat16().double().numpy()
    x[rng.random(n) < 0.1] = 0.0
    return x


def sample() -> Answer:
    rows = [
        row(spread(i, -20, i), site=f"blocks.{i}.<b>&\x1b[31m", phase=p, order=i)
        for i in range(20)
        for p in ("forward", "backward")
    ]
    return ask(rows, 1024.0)
