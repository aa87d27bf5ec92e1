"""Steps of a small program, written with a budget; shared by the tests of what becomes of old ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path

from hypocenter.nouns import Reading, StepRecord, Summary
from hypocenter.record.keeper import Keep
from hypocenter.record.norm_rows import NormRows, NormTemplate
from hypocenter.record.writer import Writer

BLOCK = 256  # steps of a segment, at least


def template(n: int = 3) -> NormTemplate:
    """Norms of some parameters, and the loss."""
    rows = [
        Reading(step=0, microbatch=0, phase="grad", site=f"w{i}", port="grad", order=0, dtype="float32",
                summary=Summary(n=16))
        for i in range(n)
    ]  # fmt: skip
    return NormTemplate([*rows, Reading(step=0, microbatch=0, phase="loss", site="loss", port="value", order=0)])


def loss_at(step: int) -> float:
    """A loss that falls, and is another one at each step."""
    return 1.0 + math.exp(-step / 500.0) + 0.05 * math.sin(step)


def write(writer: Writer, of: NormTemplate, step: int, *, is_bad: bool = False, loss: float | None = None) -> None:
    """One step, healthy unless told."""
    value = loss_at(step) if loss is None else loss
    norms = [*(value * (i + 1) for i in range(len(of.rows) - 1)), value]
    bad = frozenset([1]) if is_bad else frozenset[int]()
    record = StepRecord(step=step, n_microbatches=1, loss=value, grad_norm=math.nan if is_bad else value, lr=0.1,
                        step_ms=5.0, n_bad_grads=len(bad))  # fmt: skip
    row = Reading(step=step, microbatch=0, phase="data", site="batch.x", port="digest", order=0, digest=step * 7919,
                  summary=Summary(n=4))  # fmt: skip
    writer.write([row], record, NormRows(of, step=step, first_order=1, norms=norms, bad=bad))


def recorded(
    out: Path, n_steps: int, keep: Keep | None, *, bad: Iterable[int] = (), loss: Callable[[int], float] = loss_at,
    first: int = 0, warn: Callable[[str], None] = lambda _: None, each: Callable[[], None] = lambda: None,
) -> Path:  # fmt: skip
    """A recording of that many steps; the keeper is waited for at each block's end, as real steps take longer."""
    out.mkdir(parents=True, exist_ok=True)
    writer, of, wrong = Writer(out, rank=0, warn=warn, keep=keep), template(), set(bad)
    for step in range(first, first + n_steps):
        write(writer, of, step, is_bad=step in wrong, loss=loss(step))
        if step % BLOCK == 0 and writer.keeper is not None:
            writer.keeper.wait()
            each()
    writer.close()
    return out
