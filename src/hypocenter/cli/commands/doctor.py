"""`hypocenter doctor`: is this machine, or this job, fit to train: toolkits, settings, communication, arithmetic?"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

import click

from hypocenter import launcher
from hypocenter.cli.say import say
from hypocenter.doctor.answer import Answer, Check
from hypocenter.doctor.answering import answer
from hypocenter.doctor.catalogue import examine_machine
from hypocenter.doctor.gather import ALL_S, this_machine
from hypocenter.doctor.machine import Machine
from hypocenter.doctor.settings import examine_settings, snapshot
from hypocenter.report import wording
from hypocenter.report.doctor import json, terminal
from hypocenter.report.screen import can_draw, screen_of, write

EXIT = {"healthy": 0, "problems": 1, "cannot-tell": 5}
COMM_S = 120.0  # seconds for all ranks to come and to finish


@click.command("doctor")
@click.option("--comm", is_flag=True, help="Examine communication and arithmetic of all ranks of the job too.")
@click.option("--ranks", type=click.IntRange(2), metavar="N", help="Local ranks of --comm where there is no launcher.")
@click.option(
    "--build/--no-build", "builds", default=None,
    help="Judge what building CUDA extensions here needs; found out if not given.",
)  # fmt: skip
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(1.0), default=COMM_S, show_default=True, metavar="SECONDS",
    help="It has ended by then, whatever hangs.",
)  # fmt: skip
@click.option("--plugin", "plugins", multiple=True, metavar="FILE", help="A file with more checks.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (hypocenter.doctor/1).")
def command(
    comm: bool, ranks: int | None, builds: bool | None, timeout_s: float, plugins: tuple[str, ...], as_json: bool
) -> int:
    """Examine this machine: CUDA or Ascend toolkits, and settings that change numbers; with --comm the whole job.

    Each problem comes with the lines that fix it. Under torchrun or srun one rank of each machine looks and, with
    --comm, one rank prints for all. Exit code: 0 healthy, 1 problems, 5 cannot tell.
    """
    until = time.monotonic() + timeout_s
    is_first = launcher.local_rank(os.environ) in (None, 0)  # the others of this machine would see the same
    machine = _machine(builds, min(timeout_s / 2 if comm else timeout_s, ALL_S)) if is_first else None
    own = list(_of(machine, plugins)) if machine is not None else []
    if not comm:
        return _print(answer(own, notes=_notes(own)), as_json) if is_first else 0
    from hypocenter.doctor.communication import examine_job, speaks

    taken = snapshot(os.environ, machine.torch if machine is not None else None)
    found = examine_job(timeout_s=max(until - time.monotonic(), 1.0), ranks=ranks, own=own, settings=taken)
    whole = answer(found.checks, asked=("communication",), n_ranks=found.n_ranks, missing=found.missing)
    return _print(whole, as_json) if speaks(found) else EXIT[whole.status]


def _machine(builds: bool | None, timeout_s: float) -> Machine:
    if screen_of(sys.stderr).colour:
        say("asking torch, compilers and drivers …")
    return this_machine(timeout_s=timeout_s, builds=builds)


def _of(machine: Machine, plugins: tuple[str, ...]) -> Iterator[Check]:
    yield from examine_machine(machine, plugins)
    yield from examine_settings(machine)


def _notes(own: list[Check]) -> tuple[str, ...]:
    """What was not asked for, and could not be."""
    gpu = next((check for check in own if check.code == "toolkit.gpu-visible"), None)
    npu = next((check for check in own if check.code == "toolkit.cann"), None)
    has_none = all(check is not None and check.status == "not-applicable" for check in (gpu, npu))
    none = ("no GPU and no NPU here: what they need could not be checked",) if has_none else ()
    return (*none, "communication and arithmetic were not asked for: hypocenter doctor --comm")


def _print(found: Answer, as_json: bool) -> int:
    shown = (
        json.render(found) if as_json else terminal.render(found, screen_of(sys.stdout), can_draw=can_draw(sys.stdout))
    )
    write(sys.stdout, shown)
    worst = next((check for check in found.checks if check.status == "problem"), None)
    if not as_json and worst is not None:
        say(f"next: {wording.command('explain', worst.code)}")
    return EXIT[found.status]
