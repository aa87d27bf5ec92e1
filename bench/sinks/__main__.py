"""Run the benchmark: `python -m bench.sinks [--sink NAME] [--model NAME] [--pairs N] [--pause-ms N]`.

In one process, blocks of steps with the sink and without it take turns. CPU time of all threads counts, so that what a
sink does in its own thread does too; a block lasts some seconds, as that thread wakes once a second. `--pause-ms` makes
steps longer without CPU time, as an accelerator does: then each second holds fewer of them, and a sink costs each more.
Not counted: the child process that looks for findings, and the end of training.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.step.cost import FIXED_MS, PARAMETER_MS
from bench.step.models import MODELS, build

SINKS = ("console", "tensorboard", "prometheus=0", "opentelemetry=http://127.0.0.1:9", "wandb", "wandb=rows", "mlflow")
BLOCK_S = 3.0
N_WARM_UP = 8


def main() -> int:
    """Print a row for each sink; the exit code is 1 where one takes sentinel beyond its budget."""
    parser = argparse.ArgumentParser(prog="bench sinks", description=main.__doc__)
    parser.add_argument("--sink", action="append", help="only this one (may be repeated)")
    parser.add_argument("--model", choices=list(MODELS), default="gpt")
    parser.add_argument("--pairs", type=int, default=4, help="pairs of blocks (default 4)")
    parser.add_argument("--pause-ms", type=float, default=0.0, help="sleep in each step (default 0)")
    options = parser.parse_args()
    print(f"{'sink':34} {'steps/s':>8} {'sentinel ms':>11} {'sink ms':>8} {'budget ms':>9}")
    is_over = False
    for sink in options.sink or SINKS:
        rate, sentinel_ms, sink_ms, budget_ms = _measured(sink, options.model, options.pairs, options.pause_ms / 1000)
        is_over |= sentinel_ms + sink_ms > budget_ms
        print(f"{sink:34} {rate:8.1f} {sentinel_ms:11.3f} {sink_ms:8.3f} {budget_ms:9.3f}", flush=True)
    return int(is_over)


def _measured(sink: str, name: str, n_pairs: int, pause_s: float) -> tuple[float, float, float, float]:
    """Steps a second, what sentinel costs a step, what the sink costs more, and sentinel's budget."""
    import torch

    import hypocenter

    torch.set_num_threads(1)
    model, optimizer, step = build(name)
    sentinel, more, rates = [], [], []
    with TemporaryDirectory() as folder, _program_of(sink, Path(folder)), contextlib.redirect_stderr(None):
        for pair in range(n_pairs):
            plain_s, _ = _block(step, pause_s)
            costs: dict[tuple[str, ...], float] = {}
            for sinks in ((), (sink,)) if pair % 2 else ((sink,), ()):
                out = f"{folder}/{pair}-{len(sinks)}"
                with hypocenter.watch(model, optimizer, audit="never", sinks=sinks, out=out):
                    costs[sinks], rate = _block(step, pause_s)
                rates.append(rate)
            sentinel.append(costs[()] - plain_s)
            more.append(costs[sink,] - costs[()])
    budget_ms = FIXED_MS + PARAMETER_MS * len(list(model.parameters()))
    return statistics.median(rates), 1000 * statistics.median(sentinel), 1000 * statistics.median(more), budget_ms


def _block(step: Callable[[], None], pause_s: float) -> tuple[float, float]:
    """CPU seconds of a step, and steps a second."""
    for _ in range(N_WARM_UP):
        step()
    n, began, cpu = 0, time.monotonic(), time.process_time()
    while time.monotonic() - began < BLOCK_S:
        step()
        time.sleep(pause_s)
        n += 1
    return (time.process_time() - cpu) / n, n / (time.monotonic() - began)


@contextmanager
def _program_of(sink: str, folder: Path) -> Iterator[None]:
    """What the program that the sink attaches to has begun."""
    with ExitStack() as stack:
        if sink.startswith("wandb"):
            import wandb

            stack.enter_context(wandb.init(project="bench", mode="offline", dir=str(folder)))
        elif sink == "mlflow":
            import mlflow

            mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
            experiment = mlflow.create_experiment("bench", artifact_location=(folder / "artifacts").as_uri())
            stack.enter_context(mlflow.start_run(experiment_id=experiment))
        yield


if __name__ == "__main__":
    sys.exit(main())
