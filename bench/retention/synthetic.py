"""Steps of a small model as `sentinel` records them, made of random numbers that a step's number alone decides."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hypocenter.nouns import Reading, StepRecord, Summary
from hypocenter.record.norm_rows import NormRows, NormTemplate

N_PARAMETERS = 18
BLOCK = 1000  # steps whose numbers are drawn together


def template() -> NormTemplate:
    """The rows of one update: a norm for each parameter, then loss, norm and learning rate."""
    rows = [_row("grad", f"layers.{i}.weight", "grad", "float32", 256) for i in range(N_PARAMETERS)]
    scalars = (("loss", "loss"), ("grad", "grad_norm"), ("optimizer", "lr"))
    return NormTemplate([*rows, *(_row(phase, site, "value", "", 1) for phase, site in scalars)])


def _row(phase: str, site: str, port: str, dtype: str, n: int) -> Reading:
    return Reading(step=0, microbatch=0, phase=phase, site=site, port=port, order=0, dtype=dtype, summary=Summary(n=n))  # pyright: ignore[reportArgumentType]


def digests(step: int, rng: np.random.Generator) -> list[Reading]:
    """What is written of a batch of floats beside the norms."""
    rows = tuple(int(v) for v in rng.integers(0, 2**58, 8))
    return [
        Reading(
            step=step, microbatch=0, phase="data", site="batch.in[0]", port="field", order=0, dtype="float32",
            shape=(8, 16), digest=int(rng.integers(0, 2**63)), row_digests=rows, summary=Summary(n=128),
        )
    ]  # fmt: skip


def trend(step: np.ndarray) -> np.ndarray:
    """The loss without its noise: a power law."""
    return 1.5 + 4.0 * (1.0 + step / 1000.0) ** -0.3


def steps(
    first: int, last: int, of: NormTemplate, faults: dict[int, str]
) -> Iterator[tuple[list[Reading], StepRecord, NormRows]]:
    """What the writer is given, step by step.

    Args:
        faults: step -> nan, spike or misuse.
    """
    for begin in range(first, last, BLOCK):
        at = np.arange(begin, min(begin + BLOCK, last))
        rng = np.random.default_rng(begin)
        norms = (rng.lognormal(-2.0, 0.3, (len(at), N_PARAMETERS)) * trend(at)[:, None]).astype(np.float32)
        losses = np.float32(trend(at) * rng.lognormal(0.0, 0.05, len(at))).astype(float)
        times = rng.gamma(50.0, 0.5, len(at)).round(3)
        for i, step in enumerate(at.tolist()):
            yield _step(step, losses[i], norms[i].astype(float), times[i], rng, of, faults.get(step, ""))


def _step(
    step: int, loss: float, norms: np.ndarray, step_ms: float, rng: np.random.Generator, of: NormTemplate, fault: str
) -> tuple[list[Reading], StepRecord, NormRows]:
    loss, norms = (loss * 40.0, norms * 40.0) if fault == "spike" else (loss, norms)
    total = float(np.sqrt(np.square(norms).sum()))
    bad = frozenset([3]) if fault == "nan" else frozenset[int]()
    rows = digests(step, rng)
    if fault == "misuse":
        misuse = Summary(n=1, n_hist=1, sum=1.0, sumsq=1.0, absmax=1.0, min=1.0, max=1.0, absmin=1.0)
        rows.append(
            Reading(step=step, microbatch=0, phase="optimizer", site="misuse.clip_scaled", port="value", order=9,
                    summary=misuse)
        )  # fmt: skip
    update = NormRows(of, step=step, first_order=1, norms=[*norms.tolist(), loss, total, 1e-3], bad=bad)
    record = StepRecord(
        step=step, n_microbatches=1, loss=loss, grad_norm=float("nan") if bad else total, lr=1e-3, step_ms=step_ms,
        tap_ms=0.2, n_bad_grads=len(bad),
    )  # fmt: skip
    return rows, record, update
