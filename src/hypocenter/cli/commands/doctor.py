"""`hypocenter doctor`: is this machine, or this job, fit to train: toolkits, settings, communication, arithmetic?"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

from hypocenter import launcher
from hypocenter.cli import itself
from hypocenter.cli.answer_format import format_option, print_answer
from hypocenter.cli.say import say
from hypocenter.doctor.answer import Answer, Check
from hypocenter.doctor.answering import answer
from hypocenter.doctor.catalogue import examine_machine
from hypocenter.doctor.gather import ALL_S, switches, this_machine
from hypocenter.doctor.machine import Machine
from hypocenter.doctor.settings import examine_settings, snapshot
from hypocenter.errors import ConfigError
from hypocenter.report import doctor_screen, manuals, wording
from hypocenter.report.screen import can_draw, screen_of, write

EXIT = {"healthy": 0, "problems": 1, "cannot-tell": 5}
COMM_S = 120.0  # seconds for all ranks to come and to finish
MACHINE_SHARE = 0.5  # of the time for toolkits and settings, the rest for arithmetic or communication


@click.command("doctor")
@click.option(
    "--self", "of_itself", is_flag=True, help="Examine Hypocenter itself: versions, extras, terminal, places."
)
@click.option("--comm", is_flag=True, help="Examine communication and arithmetic of all ranks of the job too.")
@click.option(
    "--arithmetic/--no-arithmetic", default=True, show_default=True,
    help="Burn this machine's device for a moment, against float64; part of --comm too.",
)  # fmt: skip
@click.option("--ranks", type=click.IntRange(2), metavar="N", help="Local ranks of --comm where there is no launcher.")
@click.option(
    "--build/--no-build", "builds", default=None,
    help="Judge what building CUDA extensions here needs; found out if not given.",
)  # fmt: skip
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(1.0), default=COMM_S, show_default=True, metavar="SECONDS",
    help="It has ended by then, whatever hangs.",
)  # fmt: skip
@click.option(
    "--nccl-log", type=click.Path(path_type=Path), metavar="FILE",
    help="Explain what NCCL printed into FILE (NCCL_DEBUG=INFO).",
)  # fmt: skip
@click.option("--plugin", "plugins", multiple=True, metavar="FILE", help="A file with more checks.")
@format_option()
def command(
    of_itself: bool, comm: bool, arithmetic: bool, ranks: int | None, builds: bool | None, timeout_s: float,
    nccl_log: Path | None, plugins: tuple[str, ...], format_name: str,
) -> int:  # fmt: skip
    """Examine this machine: toolkits, settings that change numbers, arithmetic; with --comm the whole job.

    Each problem comes with the lines that fix it. Under torchrun or srun one rank of each machine looks and, with
    --comm, one rank prints for all. Exit code: 0 healthy, 1 problems, 5 cannot tell.
    """
    if of_itself:
        if comm:
            raise ConfigError("--self and --comm exclude each other", where="hypocenter doctor", fix="give one of them")
        return _print(answer(itself.checks(), asked=("itself",)), format_name)
    if ranks is not None and not comm:
        raise ConfigError(
            "--ranks without --comm", where="hypocenter doctor", why="only communication needs more than one rank",
            fix=wording.command("doctor", "--comm", "--ranks", str(ranks)),
        )  # fmt: skip
    if comm and not hasattr(os, "killpg"):
        raise ConfigError(
            "--comm is not for this system",
            where=sys.platform,
            why="a rank that hangs is ended with its process group, which only Linux and macOS have",
        )
    until = time.monotonic() + timeout_s
    is_first = launcher.local_rank(os.environ) in (None, 0)  # the others of this machine would see the same
    machine = _machine(builds, min(timeout_s * MACHINE_SHARE, ALL_S)) if is_first else None
    own = list(_of(machine, plugins)) if machine is not None else []
    own += _of_log(nccl_log) if nccl_log is not None and is_first else []
    if not comm and machine is None:
        return 0
    if not comm:
        own += _burn(until) if arithmetic and machine is not None and machine.has_torch else []
        return _print(answer(own, notes=_notes(own)), format_name)
    from hypocenter.doctor.communication import examine_job, speaks

    told = machine.torch if machine is not None else switches(timeout_s=timeout_s * MACHINE_SHARE)
    taken = snapshot(os.environ, told)
    found = examine_job(timeout_s=max(until - time.monotonic(), 1.0), ranks=ranks, own=own, settings=taken)
    whole = answer(
        found.checks, asked=("communication",), n_ranks=found.n_ranks, missing=found.missing,
        notes=_notes(list(found.checks), has_comm=True),
    )  # fmt: skip
    return _print(whole, format_name) if speaks(found) else EXIT[whole.status]


def _machine(builds: bool | None, timeout_s: float) -> Machine:
    if screen_of(sys.stderr).colour:
        say("asking torch, compilers and drivers …")
    return this_machine(timeout_s=timeout_s, builds=builds)


def _of_log(path: Path) -> list[Check]:
    from hypocenter.doctor.nccl_log import checks_of, read

    return checks_of(read(path))


def _of(machine: Machine, plugins: tuple[str, ...]) -> Iterator[Check]:
    yield from examine_machine(machine, plugins)
    yield from examine_settings(machine)


def _burn(until: float) -> list[Check]:
    from hypocenter.doctor.arithmetic import examine

    return examine(max(until - time.monotonic(), 1.0))


def _notes(own: list[Check], *, has_comm: bool = False) -> tuple[str, ...]:
    """Return notes on what could not be checked for want of a device, and on what was not asked for."""
    codes = ("toolkit.gpu-visible", "toolkit.cann")
    found = [check.status for check in own if check.code in codes]
    has_none = bool(found) and set(found) == {"not-applicable"}
    notes = ("no GPU and no NPU here: what they need could not be checked",) if has_none else ()
    return notes if has_comm else (*notes, "communication was not asked for: hypocenter doctor --comm")


def _print(found: Answer, format_name: str) -> int:
    if format_name != "terminal":
        print_answer("doctor", found, format_name)
        return EXIT[found.status]
    write(sys.stdout, doctor_screen.render(found, screen_of(sys.stdout), can_draw=can_draw(sys.stdout)))
    pages = {**manuals.checks(), **manuals.doctor_settings()}
    worst = next((check.code for check in found.checks if check.status == "problem" and check.code in pages), None)
    if worst is not None:
        say(f"next: {wording.command('explain', worst)}")
    return EXIT[found.status]
