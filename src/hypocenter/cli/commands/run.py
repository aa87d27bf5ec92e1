"""`hypocenter run`: run a program and record it, no change to its code.

Everything that touches the program is in `cli.child` (signals, exit) and `cli.program` (what to execute); everything
that reaches into its processes is in `boot`.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

import hypocenter
from hypocenter import deterministic, launcher
from hypocenter.cli.child import Ended, StartError, die_by, require_posix, run_child, signals_held
from hypocenter.cli.config_options import config_options, given
from hypocenter.cli.git_state import git_state
from hypocenter.cli.group import did_you_mean
from hypocenter.cli.program import ProgramCommand, argv_of
from hypocenter.cli.say import say
from hypocenter.config import Config, resolve, to_variable
from hypocenter.errors import ConfigError, HypocenterError, UnknownNameError
from hypocenter.notify.sender import NOTIFY_HELP, Sender, Way, way_of
from hypocenter.nouns import Severity
from hypocenter.record.layout import REFUSED_FILE, RUN_FILE, new_run_directory, rank_directories
from hypocenter.record.run_file import EndStatus, finish_run, start_run
from hypocenter.record.shared_directory import await_others, note_end, shared_run_directory

PURPOSES: Mapping[str, Mapping[str, Any]] = {
    # differences between two programs show in the first steps; ten, so that the optimizer's have time to grow
    "diff": {
        "level": "modules", "sketch": True, "schedule": "0-9", "param_schedule": "0-10", "calibrate": "0-9",
    },
}  # fmt: skip
"""Options by purpose. They stand above the environment and the option file, and below what is typed beside them."""
SHIM = Path(hypocenter.__file__).with_name("boot") / "shim"
CHANGES = Path(hypocenter.__file__).parent / "session" / "imposed" / "changes"
REACHED_FILE, WARNED_FILE = ".reached", ".warned"  # boot/post_import.py writes them
SEVERITIES: tuple[Severity, ...] = ("note", "warning", "error")
REFUSED, NOTHING_TO_READ, CANNOT_TELL = 2, 4, 5
_ABOVE_SENTINEL = ("schedule", "param_schedule", "sites", "exclude", "sketch", "histogram")  # options of the levels
_SHIP_S = 60.0  # longest that the rest of a rank may take to be shipped, once the program has ended
_OTHERS_S = 10.0  # the first task waits for the others' last rows; SLURM kills a step 30 s after it was told to end


def in_words(purpose: str) -> str:
    """Return the flags that a purpose stands for, as one would type them."""
    flags = (f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
             for name, value in PURPOSES[purpose].items())  # fmt: skip
    return " ".join(flags)


@click.command(
    cls=ProgramCommand, name="run", no_args_is_help=True, options_metavar="[OPTIONS]",
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
@config_options
@click.option(
    "--for",
    "purpose",
    type=click.Choice(list(PURPOSES)),
    help="Record what a command wants. " + " ".join(f"{name}: {in_words(name)}." for name in PURPOSES),
)
@click.option("--fail-on", type=click.Choice(SEVERITIES[::-1]), help="Turn exit 0 into 1 if a finding is this severe.")
@click.option("--notify", "notify", multiple=True, metavar="WHERE", help=NOTIFY_HELP)
@click.argument(
    "program", nargs=-1, required=True, type=click.UNPROCESSED, metavar="PROGRAM [ARGS]...",
    shell_complete=lambda ctx, param, typed: [CompletionItem(typed, type="file")],
)  # fmt: skip
def command(
    program: tuple[str, ...], purpose: str | None, fail_on: Severity | None, notify: tuple[str, ...], **options: Any
) -> int:
    """Run PROGRAM and record it. Its output, signals and exit code stay its own.

    PROGRAM is train.py, -m package.module, or a launcher with its arguments: torchrun, accelerate, deepspeed, srun,
    mpirun, bash. As the task of a launcher (srun hypocenter run train.py) it shares one recording with the other tasks.
    """
    require_posix()
    config = resolve(flags={**PURPOSES.get(purpose or "", {}), **given(options)})
    _check_sinks(config)
    _check_changes(config)
    _refuse_without_effect(config, given(options))
    require_readable(config)
    ways = [way_of(text) for text in notify]
    argv = argv_of(program)
    task = launcher.task()
    git = git_state() if task is None or task.number == 0 else ""
    with signals_held() as mask:
        directory = _directory(config, program, task).absolute()
        if task is None or task.number == 0:
            _begin(directory, program, config, _versions(argv[0]), git)
        close_alerts = _alerts(directory, ways, task)
        try:
            ended = run_child(argv, environment(os.environ, directory, config), mask)
        except StartError:
            finish_run(directory, "failed", None)
            raise
    code = _after(directory, ended, fail_on) if task is None else _after_task(directory, ended, fail_on, task)
    close_alerts()
    if config.ship is not None and (task is None or task.number == 0):
        _ship(directory, config.ship)
    if ended.signal is not None:
        sys.stdout.flush()
        die_by(ended.signal)
    return code


def _alerts(directory: Path, ways: list[Way], task: launcher.Task | None) -> Callable[[], None]:
    """Start threads that tell of what goes wrong while this process waits; return what ends them."""
    if not ways or (task is not None and task.number > 0):
        return lambda: None
    try:
        from hypocenter.view.alerts import RunAlerts

        sender = Sender(ways, say)
        alerts = RunAlerts(directory, sender.send)
    except Exception as error:
        say(f"warning: nobody will be told: {type(error).__name__}: {error}")
        return lambda: None

    def close() -> None:
        with suppress(Exception, KeyboardInterrupt):
            alerts.close()
            sender.close()

    return close


def _ship(directory: Path, address: str) -> None:
    """Bring to the address how the run ended, and what ranks that were killed have left."""
    from hypocenter.record.shipping import Freight, Shipper

    for i, folder in enumerate(rank_directories(directory).values()):
        freight = Freight(run=directory, folder=folder, address=address, also=(RUN_FILE,) if i == 0 else ())
        if not Shipper(freight, lambda line: say(f"warning: {line}")).close(_SHIP_S):
            return


def environment(environ: Mapping[str, str], directory: Path, config: Config) -> dict[str, str]:
    """Return the program's environment: ours, the shim first on PYTHONPATH, where to record, and how."""
    paths = [str(SHIM), *filter(None, [environ.get("PYTHONPATH")])]
    return dict(environ) | _imposed(environ, config) | {
        "PYTHONPATH": os.pathsep.join(paths),
        "HYPOCENTER_RUN": str(directory),
        "HYPOCENTER_CONFIG": to_variable(config),
    }  # fmt: skip


def _imposed(environ: Mapping[str, str], config: Config) -> dict[str, str]:
    """Return variables that must be set before the program starts."""
    if not config.deterministic:
        return {}
    return deterministic.environment(environ, deterministic.SEED if config.seed is None else config.seed)


def _directory(config: Config, program: tuple[str, ...], task: launcher.Task | None) -> Path:
    """Return a new run directory; one for all tasks of a launcher."""
    if task is None:
        return new_run_directory(config.out, config.force, _name(program))
    warn = functools.partial(_warn_of, task)
    return shared_run_directory(config.out, config.force, task, attempt=launcher.attempt(), warn=warn)


def _warn_of(task: launcher.Task, text: str) -> None:
    say(f"warning: {text} (task {task.number})")


def _check_sinks(config: Config) -> None:
    """Refuse a sink that nobody has before training; with plug-ins it cannot be known here which there are."""
    if config.sinks and not config.plugins:
        from hypocenter.record.catalogue import sink_names, unknown_sinks

        for name in unknown_sinks(config.sinks):
            names = list(sink_names())
            hint = did_you_mean(name, names, otherwise=f"one of {', '.join(names)}")
            raise UnknownNameError(f"no sink is called {name!r}", where="--sink", fix=hint)


def _check_changes(config: Config) -> None:
    """Refuse a change that nobody can make, before training."""
    names = sorted(path.stem for path in CHANGES.glob("[!_]*.py"))
    for name in {asked.partition("=")[0] for asked in config.change}.difference(names):
        hint = did_you_mean(name, names, otherwise=f"one of {', '.join(names)}")
        raise UnknownNameError(f"no change is called {name!r}", where="--change", fix=hint)


def _refuse_without_effect(config: Config, typed: Mapping[str, Any]) -> None:
    """Refuse options at level sentinel that say what a level above it records."""
    names = [f"--{name.replace('_', '-')}" for name in _ABOVE_SENTINEL if name in typed]
    if names and config.level == "sentinel" and not config.trace_batches:
        raise ConfigError(
            f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no effect at level sentinel",
            where="hypocenter run", why="sentinel records losses and norms of every step, whatever is asked for",
            fix=f"add --level modules, or leave {'it' if len(names) == 1 else 'them'} out",
        )  # fmt: skip


def _name(program: tuple[str, ...]) -> str:
    """Return a word for the run's folder: the script's or module's name, also behind a launcher."""
    if program[0] == "-m" and len(program) > 1:
        return program[1].rpartition(".")[2]
    scripts = [word for word in program if word.endswith(".py")]
    return Path([*scripts, *program][0]).stem


def _begin(directory: Path, program: tuple[str, ...], config: Config, versions: dict[str, str], git: str) -> None:
    for name in (REACHED_FILE, WARNED_FILE, REFUSED_FILE):
        (directory / name).unlink(missing_ok=True)
    variables = _imposed(os.environ, config)
    words = {"environment": " ".join(f"{name}={value}" for name, value in variables.items())} if variables else {}
    failure = start_run(directory, program, asdict(config), 1, versions, words, git)
    if failure:
        say(f"warning: run.json could not be written: {failure}")
    say(f"recording to {_short(directory)} (level {config.level})")


def _versions(executable: str) -> dict[str, str]:
    """Return what is installed beside the program; in another environment only our own version is known."""
    found = {"hypocenter": hypocenter.__version__}
    if Path(executable).parent != Path(sys.executable).parent:
        return found
    found["python"] = sys.version.split()[0]
    for name in ("torch", "transformers", "accelerate", "lightning", "deepspeed"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _after(directory: Path, ended: Ended, fail_on: Severity | None) -> int:
    """Close run.json, show the diagnosis, return the exit code. Never raises: the program's own code is at stake."""
    n_reached = _take_reached(directory)
    try:
        finish_run(directory, _status(ended), ended.code)
        if ended.code and (directory / REFUSED_FILE).exists():
            return REFUSED  # a launcher says 1 of its processes, whatever they said; why is on their stderr
        if not rank_directories(directory):
            _say_nothing_recorded(n_reached)
            return ended.code or (NOTHING_TO_READ if fail_on else 0)
        from hypocenter.cli.commands.check import exit_code, finish

        diagnosis = finish(Path(_short(directory)), stream=sys.stderr)
    except (Exception, KeyboardInterrupt) as error:
        say(f"warning: the diagnosis could not be made: {type(error).__name__}: {error}")
        say(f"   = hint: hypocenter check {_short(directory)}")
        return ended.code or (CANNOT_TELL if fail_on else 0)
    if fail_on is None or ended.code:
        return ended.code
    return exit_code(diagnosis, fail_on) if diagnosis is not None else CANNOT_TELL


def _after_task(directory: Path, ended: Ended, fail_on: Severity | None, task: launcher.Task) -> int:
    """End a task: the first waits for the others and speaks for all, the others return their program's code."""
    note_end(directory, task)
    if task.number > 0:
        finish_run(directory, _status(ended), ended.code)
        return ended.code
    if not await_others(directory, task, _OTHERS_S):
        say(f"note: not all of {task.n_tasks} tasks have ended: what they record later is not in this diagnosis")
    return _after(directory, ended, fail_on)


def _status(ended: Ended) -> EndStatus:
    return "finished" if ended.code == 0 else "failed" if ended.signal is None else "killed"


def _take_reached(directory: Path) -> int:
    """Count the processes that imported torch or mindspore, and remove the files that told so."""
    (directory / WARNED_FILE).unlink(missing_ok=True)
    try:
        n_reached = len((directory / REACHED_FILE).read_text(encoding="ascii").splitlines())
        (directory / REACHED_FILE).unlink()
    except (OSError, UnicodeDecodeError):
        return 0
    return n_reached


def _say_nothing_recorded(n_reached: int) -> None:
    if n_reached:
        processes = "one process" if n_reached == 1 else f"{n_reached} processes"
        say(f"note: nothing was recorded: {processes} imported torch or mindspore, but no step was finished")
        say("   = hint: a step is a module called, a backward pass, and an optimizer's step")
    else:
        say("note: nothing was recorded: no process imported torch or mindspore")
        say(
            "   = hint: python -I, -E, -S or older than 3.10, and scripts that set PYTHONPATH anew, keep hypocenter out"
        )


def _short(directory: Path) -> str:
    """Return the path as one would type it from here."""
    relative = os.path.relpath(directory)
    return str(directory) if relative.startswith("..") else relative


def require_readable(config: Config) -> None:
    """Raise ConfigError where a checkpoint, map or recording that is to be imposed cannot be used."""
    try:
        if config.weights_map:
            from hypocenter.compare.pairing.manual_map import read_map

            read_map(config.weights_map)
        if config.initial_weights:
            from hypocenter.compare.weights.catalogue import read_checkpoint

            read_checkpoint(config.initial_weights)
        if config.gradients_from:
            _require_gradients(config.gradients_from)
    except ConfigError:
        raise
    except HypocenterError as error:
        raise ConfigError(error.what, where=error.where, why=error.why, fix=error.fix) from error


def _require_gradients(path: str) -> None:
    from hypocenter.compare.updates.recorded import RecordedUpdates
    from hypocenter.record.reader import open_run

    if not RecordedUpdates(open_run(path)).steps:
        raise ConfigError(
            "the recording holds no gradients", where=f"--gradients-from {Path(path)}",
            why="only level tensors keeps them, at the steps of its schedule",
            fix="record it with `hypocenter run --level tensors --schedule 0,1 ...`",
        )  # fmt: skip
