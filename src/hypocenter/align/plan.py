"""plan.toml: two programs that should train alike, and how far each stage goes."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

import msgspec

from hypocenter.errors import ConfigError
from hypocenter.toml import tomllib

SideName = Literal["baseline", "candidate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two programs: a command to run here, or recordings and logs made elsewhere."""

    command: str = ""  # "python train.py --config a.yaml", as a shell splits it
    cwd: str = "."  # where it is started
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    files: tuple[str, ...] = ()  # more files (globs) whose content its numbers depend on
    config: tuple[str, ...] = ()  # configuration files for the checklist
    recordings: str = ""  # folder of recordings made elsewhere, each named for its purpose: steps, again, frozen, ...
    logs: Mapping[str, str] = field(default_factory=dict[str, str])  # purpose -> log: frozen, long, repeat-1, ...

    @property
    def argv(self) -> tuple[str, ...]:
        """The words of the command, without settings of variables before it."""
        words = shlex.split(self.command)
        return tuple(words[_n_settings(words) :])

    @property
    def variables(self) -> dict[str, str]:
        """The variables that are set for the program: `env`, and NAME=VALUE words before the command."""
        words = shlex.split(self.command)
        set_before = (word.partition("=") for word in words[: _n_settings(words)])
        return {**self.env, **{name: value for name, _, value in set_before}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """How far the stages go and what they impose on both programs."""

    skip: tuple[int, ...] = ()  # numbers of stages that are not done
    seed: int = 1234  # of all random numbers in stages 1 to 5
    deterministic: bool = True  # switch deterministic algorithms on in stages 1 to 5
    dropout: bool = False  # leave dropout on
    lr: float | None = None  # constant learning rate in stages 1 to 4; the programs' own when not given
    weights: Literal["compare", "impose"] = "compare"  # impose: the candidate starts from the baseline's weights
    steps: int = 3  # steps recorded in full for stages 1 to 4
    frozen_steps: int = 1000  # at learning rate 0
    long_steps: int = 1000
    repeats: int = 2  # of the baseline without determinism
    budget: float = 4.0  # an error counts from this many times the measured noise floor on
    map: str = ""  # pairs of names that win (TOML), as `hypocenter diff --map`
    tokenizer: str = ""  # folder of a tokenizer: the batch of a spike is decoded with it
    timeout_s: float | None = None  # longest that one run may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Widening:
    """One more feature or card: commands that take the place of both sides' own."""

    name: str
    baseline: str = ""  # the side's own command when empty: one process against many
    candidate: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole plan. Paths in it are relative to `folder`."""

    baseline: Side
    candidate: Side
    stages: Stages = field(default_factory=Stages)
    widening: tuple[Widening, ...] = ()
    path: Path = Path("plan.toml")

    @property
    def folder(self) -> Path:
        """The folder that plan.toml is in."""
        return self.path.absolute().parent

    @property
    def state(self) -> Path:
        """The folder that keeps everything made on the way: `<plan>.align/` beside the plan."""
        return self.folder / f"{self.path.stem}.align"

    def side(self, name: SideName) -> Side:
        """Return the side of this name."""
        return self.baseline if name == "baseline" else self.candidate

    def start_folder(self, name: SideName) -> Path:
        """Return the folder in which a side's command is started."""
        return (self.folder / self.side(name).cwd).resolve()

    def widened(self, wide: Widening) -> Plan:
        """Return the plan with the commands of a widening in place of its own."""
        sides = {
            "baseline": replace(self.baseline, command=wide.baseline or self.baseline.command),
            "candidate": replace(self.candidate, command=wide.candidate or self.candidate.command),
        }
        return replace(self, baseline=sides["baseline"], candidate=sides["candidate"], widening=())


def read_plan(path: Path | str) -> Plan:
    """Read the plan from a TOML file.

    Raises:
        ConfigError: it cannot be read, or a name or value in it is none; names the nearest right one.
    """
    path = Path(path)
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        raise ConfigError(
            "the plan cannot be read", where=str(path), why=why, fix="hypocenter align new > plan.toml writes one"
        ) from error
    return plan_of(found, path)


def plan_of(found: Mapping[str, Any], path: Path) -> Plan:
    """Return the plan that the content of a TOML file means. Raises ConfigError."""
    _check(found, ("baseline", "candidate", "stages", "widening"), str(path))
    widening = found.get("widening", [])
    if not isinstance(widening, list):
        raise ConfigError("widening is a list", where=str(path), fix="write [[widening]] in two pairs of brackets")
    plan = Plan(
        baseline=_side(found, "baseline", path), candidate=_side(found, "candidate", path),
        stages=_part(Stages, found.get("stages", {}), f"{path}, [stages]"),
        widening=tuple(_part(Widening, one, f"{path}, [[widening]]") for one in widening), path=path,
    )  # fmt: skip
    _check_numbers(plan.stages, str(path))
    return plan


def _side(found: Mapping[str, Any], name: str, path: Path) -> Side:
    where = f"{path}, [{name}]"
    side = _part(Side, found.get(name, {}), where)
    if not (side.command or side.recordings or side.logs or side.config):
        raise ConfigError(
            f"nothing is said of the {name}", where=where, why="there is neither a command nor a recording of it",
            fix=f'[{name}] command = "python train.py"',
        )  # fmt: skip
    try:
        shlex.split(side.command)
    except ValueError as error:
        raise ConfigError("the command cannot be split into words", where=where, why=str(error)) from error
    return side


def _part(kind: type[Any], found: Any, where: str) -> Any:
    if not isinstance(found, dict):
        raise ConfigError("a table is expected", where=where, why=f"it is {found!r}")
    names = {f.name for f in fields(kind)}
    _check(found, names, where)
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for name, value in found.items():
        if isinstance(value, str) and name in ("files", "config"):
            value = [value]
        try:
            values[name] = msgspec.convert(value, hints[name])
        except msgspec.ValidationError as error:
            raise ConfigError(f"{name} cannot be {value!r}", where=where, why=str(error)) from error
    if kind is Widening and not values.get("name"):
        raise ConfigError("a widening needs a name", where=where, fix='name = "2 data-parallel ranks"')
    return kind(**values)


def _check(found: Mapping[str, Any], known: Any, where: str) -> None:
    for name in found:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
            fix = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"
            raise ConfigError(f"unknown name {name!r}", where=where, why="no part of a plan has this name", fix=fix)


def _check_numbers(stages: Stages, where: str) -> None:
    least = {"steps": 2, "frozen_steps": 1, "long_steps": 2, "repeats": 1}
    for name, number in least.items():
        if getattr(stages, name) < number:
            raise ConfigError(f"{name} cannot be {getattr(stages, name)}", where=where, fix=f"{number} or more")
    if not stages.budget > 0:
        raise ConfigError(f"budget cannot be {stages.budget:g}", where=where, fix="4 is usual")


def _n_settings(words: list[str]) -> int:
    """Count the words at the beginning that set variables, as in `OMP_NUM_THREADS=1 python train.py`."""
    n = 0
    while n < len(words) and words[n].partition("=")[1] and words[n].partition("=")[0].isidentifier():
        n += 1
    return n
