"""Hand-made recordings and diagnoses for the report tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from hypocenter.nouns import Coords, Diagnosis, Finding, Place, Reading, Remedy, Run, Source, StepRecord, Summary
from hypocenter.record.schema import readings_batch, steps_batch


@dataclass
class FakeRecording:
    """What `record.reader.open_run` gives, filled by hand."""

    directory: Path = Path("runs/0412")
    run: Run = field(
        default_factory=lambda: Run(
            format=1, name="0412", command=("python", "train.py"), world_size=8, status="finished", exit_code=0,
            versions={"hypocenter": "0.1.0", "torch": "2.6.0"}, config={"level": "modules"},
        )
    )  # fmt: skip
    ranks: list[int] = field(default_factory=lambda: [3])
    problems: list[str] = field(default_factory=list)
    places: dict[int, Place] = field(default_factory=dict)
    rows: list[tuple[int, Reading]] = field(default_factory=list)
    step_rows: list[StepRecord] = field(default_factory=list)

    @property
    def n_rows(self) -> int:
        return len(self.rows)

    def table(self) -> pa.Table:
        table = pa.Table.from_batches([readings_batch([row for _, row in self.rows])])
        return table.append_column("rank", pa.array([rank for rank, _ in self.rows], pa.int32()))

    def evidence_files(self) -> list[tuple[int, Path]]:
        return []

    def step_records(self) -> list[tuple[int, StepRecord]]:
        return [(self.ranks[0], record) for record in self.step_rows]

    def over_parts(self, look: Callable[[Any, list[int]], Any]) -> list[Any]:
        return [look(self, self.ranks)]

    def record_table(self, rank: int) -> pa.Table:
        return pa.Table.from_batches([steps_batch(self._records.get(rank, []))])

    @cached_property
    def _records(self) -> dict[int, list[StepRecord]]:
        by_rank = defaultdict[int, list[StepRecord]](list)
        for rank, record in self.step_records():
            by_rank[rank].append(record)
        return by_rank


@dataclass
class Job(FakeRecording):
    """A recording of many ranks."""

    records: list[tuple[int, StepRecord]] = field(default_factory=list)

    def step_records(self) -> list[tuple[int, StepRecord]]:
        return self.records


OVERFLOW = Finding(
    code="HC101", kind="nonfinite", severity="error", title="the product overflowed float16",
    step=12, microbatch=0, rank=3, coords=Coords(tp=1, dp=0), phase="forward",
    site="encoder.block.1.layer.1.DenseReluDense", port="out[0]", samples=(2,), op="aten.mul.Tensor",
    source=Source(
        file="modeling_t5.py", line=310, function="forward",
        text="        hidden_states = hidden_gelu * hidden_linear\n",
    ),
    cause="format-overflow", limit=65504.0, actual=110000.0,
    why=(
        "the inputs were finite: in[0] |max| 356, in[1] |max| 309",
        "in float64 the product is 1.1e5 > 65504, the largest float16; |max| had doubled every 3 steps since step 4",
    ),
    then=("wo out[0] -> NaN (next op)", "loss -> NaN (step 12)", "112 of 131 gradients -> NaN"),
    confidence="proven",
    remedy=Remedy(
        action="fp32-island", targets=("encoder.block.1.layer.1.DenseReluDense",), verified=True,
        text="run encoder.block.1.layer.1.DenseReluDense in float32",
    ),
    chips=("+inf ×12",), bundle="rank-00003/bundles/step-000012-nonfinite-grad",
)  # fmt: skip

UNVERIFIED = Finding(
    code="HC301", kind="underflow", severity="warning", title="half of a gradient underflows to zero",
    step=7, microbatch=1, rank=0, phase="grad", param="decoder.final_layer_norm.weight", port="grad",
    cause="grad-underflow", why=("51 % of the nonzero gradient is below 2^-24, the smallest float16",),
    confidence="likely", remedy=Remedy(action="loss-scale", text="raise the loss scale to 4096"), count=5,
)  # fmt: skip

NOTE = Finding(
    code="HC900", kind="environment", severity="note", title="the recording stops before the run did",
    step=12, cause="unknown", why=("status is running, the last row is of step 12",),
)  # fmt: skip

FINDINGS = Diagnosis(
    run="0412", status="findings", findings=(OVERFLOW, UNVERIFIED, NOTE),
    n_steps=13, n_ranks=8, n_sites=120, n_rows=384000, notes=("2 rows of rank 5 were cut off by a kill",),
)  # fmt: skip

HEALTHY = Diagnosis(run="0412", status="healthy", n_steps=13, n_ranks=1, n_sites=120, n_rows=1560)

CANNOT_TELL = Diagnosis(
    run="0412", status="cannot-tell", why=("no step was completed", "rank 3 wrote no rows"), n_ranks=2, n_sites=0
)

NASTY = "</script><script>window.pwned=1</script>\"'`${x}\x1b[31m<img src=x onerror=window.pwned=1>|*_\u202e"

HOSTILE = Finding(
    code="HC101", kind="nonfinite", severity="error", title=NASTY, step=1, rank=0, phase="forward",
    site=NASTY, port=NASTY, param=NASTY, op=NASTY, source=Source(file=NASTY, line=3, text=NASTY * 100),
    cause="unknown", why=(NASTY, "x" * 10_000), then=(NASTY,), chips=(NASTY,), names=(NASTY, "y" * 10_000),
    remedy=Remedy(action=NASTY, targets=(NASTY,), text=NASTY), bundle=NASTY,
)  # fmt: skip


def reading(site: str, order: int, absmax: float, **more: Any) -> Reading:
    """One forward output in float16, 4 × 16 elements unless `more` says otherwise; `summary` overrides the values."""
    fields: dict[str, Any] = {
        "step": 0, "microbatch": 0, "phase": "forward", "port": "out[0]", "dtype": "float16", "shape": (4, 16),
        "module": "Linear",
        "summary": Summary(n=64, n_hist=64, absmax=absmax, absmin=absmax / 1e4, min=-absmax, max=absmax),
    }  # fmt: skip
    return Reading(site=site, order=order, **{**fields, **more})


def planted(n_steps: int, n_blocks: int = 4, bad_step: int | None = None, *, replay: bool = False) -> list[Reading]:
    """A model of blocks whose product grows until it overflows float16 at `bad_step` in block 1, NaN from there on."""
    bad_step = n_steps - 1 if bad_step is None else bad_step
    rows: list[Reading] = []
    for step in range(n_steps):
        order, is_bad = 0, False
        for block in range(n_blocks):
            for name, size in (("layer_norm", 4.0), ("DenseReluDense.wi_0", 40.0), ("DenseReluDense", 9000.0)):
                site = f"encoder.block.{block}.layer.1.{name}"
                growth = (
                    2.0 ** ((step - bad_step) / 3) if block == 1 and name == "DenseReluDense" else 0.02 + block / 50
                )
                absmax = size * (7.3 if growth == 1 else 7 * growth) * (1 + 0.1 * ((step * 7 + order) % 5))
                first = step == bad_step and block == 1 and name == "DenseReluDense"
                values = Summary(n=64, n_hist=64, n_zero=order % 3, absmax=absmax, absmin=absmax / 1e4)
                if first:
                    values = Summary(n=64, n_hist=64, n_posinf=12, absmax=65000.0, absmin=0.1)
                elif is_bad or step > bad_step:
                    values = Summary(n=64, n_hist=64, n_nan=64)
                is_bad = is_bad or first
                rows.append(reading(site, order, 0.0, step=step, summary=values, replay=replay))
                order += 1
    return rows
