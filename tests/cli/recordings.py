"""Small real recordings for the tests of the reading commands, and a way to run a command as a person does."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import dataclass
from pathlib import Path

from hypocenter.cli import main
from hypocenter.nouns import Reading, StepRecord, Summary
from hypocenter.record.run_file import finish_run, start_run
from hypocenter.record.writer import Writer


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str


def run(*words: object) -> Said:
    """Run `hypocenter WORDS` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    return Said(code=code, out=out.getvalue(), err=err.getvalue())


def frame(site: str, module: str, order: int, step: int, absmax: float, *, n_inf: int = 0) -> list[Reading]:
    """Input and output of one module call, float16, 2 × 8."""
    values = Summary(n=16, n_hist=16, n_zero=3, absmax=absmax, absmin=absmax / 100, min=-absmax, max=absmax)
    bad = (
        Summary(n=16, n_hist=16, n_posinf=n_inf, absmax=60000.0, absmin=0.5, min=-1.0, max=60000.0) if n_inf else values
    )
    return [
        Reading(
            step=step, microbatch=0, phase="forward", site=site, port=port, order=order + i, dtype="float16",
            shape=(2, 8), module=module, summary=summary,
        )
        for i, (port, summary) in enumerate((("in[0]", values), ("out[0]", bad)))
    ]  # fmt: skip


def record(path: Path, *, n_steps: int = 4, fails: bool = True) -> Path:
    """A run of three modules whose last overflows in the last step."""
    start_run(path, ["python", "train.py"], {"level": "modules"}, 1, {"hypocenter": "0"})
    writer = Writer(path, rank=0, warn=lambda text: print(text, file=sys.stderr))
    for step in range(n_steps):
        is_bad = fails and step == n_steps - 1
        readings = [
            *frame("encoder.norm", "LayerNorm", 0, step, 1.5),
            *frame("encoder.ff.wi", "Linear", 2, step, 40.0 * (step + 1)),
            *frame("encoder.ff", "FeedForward", 4, step, 9000.0, n_inf=5 if is_bad else 0),
        ]
        loss = float("nan") if is_bad else 3.0 - step / 4
        norm = float("inf") if is_bad else 1.0
        writer.write(readings, StepRecord(step=step, loss=loss, grad_norm=norm, step_ms=100.0, tap_ms=2.0))
    writer.close()
    finish_run(path, "finished", 0)
    return path
