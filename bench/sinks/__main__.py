"""Run the benchmark: `python -m bench.sinks [--sink NAME] [--parameters N] [--steps N]`.

A sink is given steps as `sentinel` makes them, with a norm for each parameter. Its thread takes a turn once a second in
a run, so what a step costs depends on how long steps are: measured are turns of one step (steps of a second or more)
and of a hundred (steps of 10 ms). CPU time of all threads counts. Not counted: the process that looks for findings.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.step.cost import FIXED_MS, PARAMETER_MS
from hypocenter.nouns import Reading, StepRecord, Summary
from hypocenter.record.all_rows import AllRows
from hypocenter.record.catalogue import SinkStart, load_sinks
from hypocenter.record.norm_rows import NormRows, NormTemplate

SINKS = ("console", "tensorboard", "prometheus=0", "opentelemetry=http://127.0.0.1:9", "wandb", "wandb=rows", "mlflow")
STEPS_OF_TURN = (1, 100)


def main() -> int:
    """Print a row for each sink, in milliseconds of CPU time a step."""
    parser = argparse.ArgumentParser(prog="bench sinks", description=main.__doc__)
    parser.add_argument("--sink", action="append", help="only this one (may be repeated)")
    parser.add_argument("--parameters", type=int, default=150, help="of the model (default 150)")
    parser.add_argument("--steps", type=int, default=1000, help="of each measurement (default 1000)")
    options = parser.parse_args()
    print(
        f"sentinel's budget with {options.parameters} parameters: {FIXED_MS + PARAMETER_MS * options.parameters:.2f} ms"
    )
    print(f"{'sink':34}" + "".join(f" {f'{n} a turn':>11}" for n in STEPS_OF_TURN) + f" {'in training':>11}")
    for sink in options.sink or SINKS:
        with TemporaryDirectory() as folder, _program_of(sink, Path(folder)):
            costs = [_cost_ms(sink, Path(folder), options, n) for n in STEPS_OF_TURN]
        print(f"{sink:34}" + "".join(f" {ms:11.3f}" for ms, _ in costs) + f" {costs[-1][1]:11.4f}", flush=True)
    return 0


def _cost_ms(sink: str, folder: Path, options: argparse.Namespace, n_a_turn: int) -> tuple[float, float]:
    """CPU time of a step, of all threads, and of the training thread alone."""
    template = NormTemplate([_row(i) for i in range(options.parameters)])
    sinks = load_sinks([sink], start=SinkStart(directory=folder), warn=lambda text: print(text, file=sys.stderr))
    (opened,) = (sinks[name] for name in sinks.names)
    own: list[float] = []
    n_steps = min(options.steps, 200) if n_a_turn == 1 else options.steps
    began = 0.0
    for step in range(-n_a_turn, n_steps):  # a first turn is not measured: wandb and mlflow begin their run
        if step == 0:
            began = time.process_time()
        norms = NormRows(template, step=step, first_order=0, norms=[1.0] * options.parameters, bad=frozenset())
        record = StepRecord(
            step=max(step, 0), loss=1.0, grad_norm=2.0, lr=1e-3, loss_scale=1.0, step_ms=10.0, tap_ms=1.0
        )
        at = time.thread_time()
        sinks.write(AllRows((), norms), record)
        own.append(time.thread_time() - at)
        if (step + 1) % n_a_turn == 0:
            _take_a_turn(opened)
    cost_ms = 1000 * (time.process_time() - began) / n_steps
    sinks.close()
    return cost_ms, 1000 * statistics.median(own)


def _take_a_turn(opened: Any) -> None:
    aside = getattr(opened, "_aside", opened)
    if hasattr(aside, "settle"):
        aside.settle()


def _row(number: int) -> Reading:
    return Reading(
        step=0, microbatch=0, phase="grad", site=f"layers.{number}.weight", port="grad", order=number, dtype="float32",
        shape=(64, 64), summary=Summary(n=4096),
    )  # fmt: skip


@contextmanager
def _program_of(sink: str, folder: Path) -> Iterator[None]:
    """What the program that the sink attaches to has begun."""
    with ExitStack() as stack:
        if sink.startswith("wandb"):
            import wandb

            settings = wandb.Settings(silent=True, console="off")
            stack.enter_context(wandb.init(project="bench", mode="offline", dir=str(folder), settings=settings))
        elif sink == "mlflow":
            import mlflow

            mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
            experiment = mlflow.create_experiment("bench", artifact_location=(folder / "artifacts").as_uri())
            stack.enter_context(mlflow.start_run(experiment_id=experiment))
        yield


if __name__ == "__main__":
    sys.exit(main())
