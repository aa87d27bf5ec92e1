"""One config tree, frozen after start: file < environment < flags < code. A typo is an error that names the nearest."""

from __future__ import annotations

import difflib
import functools
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import quote, unquote

import msgspec

from hypocenter.deterministic import SEEDS
from hypocenter.errors import ConfigError
from hypocenter.nouns import Level
from hypocenter.schedule import parse
from hypocenter.toml import tomllib

ENV_PREFIX = "HYPOCENTER_"
LEAST_KEPT, KEPT, KEPT_OF_JOB = 1 << 20, 1 << 30, 200 * 10**9  # bytes: of a rank, and of all of a job together
_READ = ("initial_weights", "weights_map", "gradients_from")  # options that are paths of what exists
_FROM_ZERO = {  # options whose value is 0 or more, when it is given, and what 0 means
    "stop_after_step": "end after the first step", "stop_after_batch": "end after the first micro-batch",
    "impose_lr": "no parameter changes",
}  # fmt: skip
_PLAIN_TYPES = {"int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false"}
RESERVED_ENV = frozenset({"HYPOCENTER_CONFIG", "HYPOCENTER_RUN", "HYPOCENTER_TRACEBACK"})
# the first two are written by `hypocenter run` for its child processes, the third shows tracebacks of our own bugs


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Every option of the recording half, with its default.

    Schedules are `never`, or `every=N`, `0,5-8,100-120`, `doubling` and lists of these; sites are shell globs on sites.
    """

    level: Level = "sentinel"
    schedule: str = "every=1"  # steps at which a level above sentinel records
    param_schedule: str = "every=100"  # steps at which parameters and optimizer state are summarised (modules and up)
    sites: tuple[str, ...] = ()  # record only sites that match one of these; empty: all
    exclude: tuple[str, ...] = ()  # and none that match one of these
    trace_batches: tuple[int, ...] = ()  # micro-batches (counted from 0 over the run) to record at level modules
    stop_after_batch: int | None = None  # end training after this micro-batch
    stop_after_step: int | None = None  # end training after this optimizer step
    impose_lr: float | None = None  # every update is made with this learning rate, whatever the scheduler says
    save_initial_weights: bool = False  # write parameters and buffers as they are before the first step
    initial_weights: str | None = None  # checkpoint, or recording with initial weights, that the model starts from
    weights_map: str | None = None  # TOML file that pairs names of another model's tensors with this one's
    gradients_from: str | None = None  # recording whose gradients the optimizer gets in place of the program's own
    frames: int = 21  # size of the ring of last module frames
    sketch: bool = False  # add the sketch to modules and up
    histogram: Literal["sample", "full"] = "sample"  # what the exponent histogram is made from, while training
    on_finding: Literal["continue", "skip", "stop"] = "continue"  # what to do at the step that failed
    replay: bool = True  # re-execute a step that failed
    cure: Literal["auto", "full", "off"] = "auto"  # search the smallest float32 island that cures; full: no budget
    max_replays: int = 8  # failed steps that are replayed; later ones are only recorded
    replicas: str = "every=10"  # steps at which what should be equal over ranks is digested (64 bits a parameter)
    collectives: str = "every=100"  # steps at which what goes into and comes out of collectives is summed up
    sdc_check: str = "never"  # steps at which each rank does its neighbour's micro-batch again and compares the bits
    calibrate: str = "never"  # steps at which the noise floor is measured by perturbed replays (4 times the step)
    health: str = "never"  # steps at which activations, attention, routers and updates are looked at, for `health`
    audit: str = "auto"  # steps that are done again to see whether the gradients are those of their micro-batches
    relations: str = "auto"  # steps at which what must not matter is changed in replays of a micro-batch
    agree: bool = True  # ranks tell each other that a step failed, over a side group of their own
    node_files: bool = True  # of 64 ranks and more: a process beside each node's first rank tells `view` where they are
    agree_timeout_s: float = 10.0  # longest that one rank waits for the others in that; then it goes on alone
    save_batches: int = 0  # of this many first steps the integer inputs are kept whole, for the checklist
    keep_mb: int = 2048  # most memory that kept inputs of one step may pin
    bundle_mb: int = 256  # largest bundle; larger tensors are cut out of it and named
    compiled_backward: bool = False  # probes in compiled backward: changes compiled bf16 numerics, hence opt-in
    deterministic: bool = False  # seeds, deterministic algorithms and the variables that go with them
    seed: int | None = None  # of all generators; None: 42 when deterministic, else they are left alone
    no_dropout: bool = False  # no value is dropped at random
    change: tuple[str, ...] = ()  # what must not matter, set to another value, as `twin` does: workers=0
    states: str = "never"  # steps at which random states are digested, in a run of any number of ranks
    op_bits: bool = False  # digests of what every operator reads and writes, which `determinism` compares
    keep: str | None = None  # what a rank may take on disk; None: 1 GiB, of many ranks each its share of 200 GB
    keep_steps: int | None = None  # the last steps that stay whole; None: 10,000 at sentinel, above it all that fit
    ship: str | None = None  # address that what is recorded is brought to, beside the run directory here
    out: str | None = None  # run directory; a new one under runs/ when not given
    force: bool = False  # overwrite an existing recording
    sinks: tuple[str, ...] = ()  # where else numbers and findings go while training: NAME or NAME=WHERE, docs/sinks.md
    plugins: tuple[str, ...] = ()  # Python files with rules, causes, sinks of your own

    @property
    def looks_at_relations(self) -> bool:
        """Whether replays change what must not matter: by default where steps may be done again."""
        if self.relations == "auto":
            return self.audit != "never" and self.replay
        return self.relations != "never"


def resolve(
    *, flags: Mapping[str, Any] | None = None, code: Mapping[str, Any] | None = None, cwd: Path | None = None
) -> Config:
    """Merge defaults, file (hypocenter.toml or [tool.hypocenter]), environment, flags and code, in rising order.

    Raises:
        ConfigError: unknown option, wrong type or value; names the source and the nearest right option.
    """
    merged: dict[str, Any] = {}
    for origin, values in (
        _from_file(cwd or Path.cwd()),
        ("the environment", _from_environment(os.environ)),
        ("the command line", dict(flags or {})),
        ("code", dict(code or {})),
    ):
        merged.update(_checked(values, origin))
    return _build(merged, "the merged options")


def from_json(text: str) -> Config:
    """Read back what `to_json` or `to_variable` wrote: how `hypocenter run` hands the config to its children."""
    origin = "HYPOCENTER_CONFIG"
    try:
        values = msgspec.json.decode(unquote(text) if text.startswith("%7B") else text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigError("the options handed over cannot be read", where=origin, why=str(error)) from error
    return _build(_checked(values, origin), origin)


def to_json(config: Config) -> str:
    """Return the config as one line of JSON."""
    return msgspec.json.encode(asdict(config)).decode()


def to_variable(config: Config) -> str:
    """Return the config for the environment, percent-encoded: launchers put it on a shell's command line."""
    return quote(to_json(config), safe=":,/").replace("~", "%7E")


def _from_file(cwd: Path) -> tuple[str, dict[str, Any]]:
    own, project = cwd / "hypocenter.toml", cwd / "pyproject.toml"
    for path, pick in ((own, lambda d: d), (project, lambda d: d.get("tool", {}).get("hypocenter", {}))):
        if path.is_file():
            try:
                values = pick(tomllib.loads(path.read_text(encoding="utf-8")))
            except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
                if path == project:
                    continue  # a broken pyproject.toml is not ours to complain about
                raise ConfigError(
                    "the option file cannot be read", where=str(path), why=str(error), fix="mend it or remove it"
                ) from error
            if values:
                return str(path), values
    return "no file", {}


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    return {
        key[len(ENV_PREFIX) :].lower(): value
        for key, value in environ.items()
        if key.startswith(ENV_PREFIX) and key not in RESERVED_ENV
    }


def _checked(values: Mapping[str, Any], origin: str) -> dict[str, Any]:
    known = [f.name for f in fields(Config)]
    out: dict[str, Any] = {}
    for raw, value in values.items():
        name = raw.replace("-", "_")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            raise ConfigError(
                f"unknown option {raw!r}",
                where=origin,
                why="no option has this name",
                fix=f"did you mean {near[0]!r}?" if near else "see `hypocenter run --help` for all options",
            )
        out[name] = value
    for name, value in out.items():
        out[name] = _convert(name, value, origin)
    return out


_hints = functools.cache(get_type_hints)  # 5 ms, for each option of each process


def _convert(name: str, value: Any, origin: str) -> Any:
    if isinstance(value, str) and name in ("sites", "exclude", "trace_batches", "change", "sinks", "plugins"):
        value = [part.strip() for part in value.split(",") if part.strip()]
    hint = _hints(Config)[name]
    try:
        return msgspec.convert(value, hint, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"option {name!r} cannot be {value!r}", where=origin, why=str(error), fix=_allowed(hint, value)
        ) from error


def _allowed(hint: Any, value: Any) -> str:
    if get_origin(hint) is not Literal:
        named = hint.__name__ if isinstance(hint, type) else str(hint).removesuffix(" | None")
        return f"its type is {_PLAIN_TYPES.get(named, named)}"
    choices = [str(choice) for choice in get_args(hint)]
    near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
    return (f"did you mean {near[0]!r}? " if near else "") + "it is one of " + ", ".join(choices)


SCHEDULES = (
    "schedule", "param_schedule", "replicas", "collectives", "sdc_check", "calibrate", "health", "audit", "relations",
    "states",
)  # fmt: skip
"""Options that are schedules of steps."""


def _build(values: Mapping[str, Any], origin: str) -> Config:
    config = Config(**{name: _convert(name, value, origin) for name, value in values.items()})
    for name in SCHEDULES:
        if (name, getattr(config, name)) not in (("audit", "auto"), ("relations", "auto")):
            parse(getattr(config, name))  # a typo is found before training starts
    for name in ("frames", "save_batches", "keep_mb", "bundle_mb", "max_replays", "agree_timeout_s"):
        if getattr(config, name) < 0:
            raise ConfigError(f"option {name!r} cannot be negative", where=origin, fix="use 0 to switch it off")
    for name, zero in _FROM_ZERO.items():
        value = getattr(config, name)
        if value is not None and not 0 <= value < math.inf:
            raise ConfigError(f"option {name!r} cannot be {value}", where=origin, fix=f"give 0 or more; 0: {zero}")
    _check_keep(config, origin)
    if config.ship is not None and re.match(r"[a-z0-9+.-]+://[^/]*@", config.ship):
        raise ConfigError(
            "option 'ship' cannot hold a user or a password", where=origin, why="addresses are recorded and printed",
            fix="give credentials as the store's own tools take them: environment, profile or role",
        )  # fmt: skip
    if config.seed is not None:
        checked_seed(config.seed, origin)
    return _with_whole_paths(config, origin)


def _check_keep(config: Config, origin: str) -> None:
    try:
        n_bytes = bytes_kept(config.keep, 1)
    except ValueError as error:
        raise ConfigError(
            f"option 'keep' cannot be {config.keep!r}", where=origin, why=str(error), fix="give a size, such as 2GiB"
        ) from error
    if n_bytes < LEAST_KEPT:
        raise ConfigError(
            f"option 'keep' cannot be {config.keep!r}", where=origin, why="no rank can be recorded in so little",
            fix="give 1MiB or more",
        )  # fmt: skip
    if config.keep_steps is not None and config.keep_steps < 1:
        raise ConfigError(f"option 'keep_steps' cannot be {config.keep_steps}", where=origin, fix="give 1 or more")


def bytes_kept(keep: str | None, n_ranks: int) -> int:
    """Return what each rank of a job may take on disk, in bytes.

    Args:
        keep: as the option has it; None: KEPT, and no more than a share of KEPT_OF_JOB.
        n_ranks: of the job.
    """
    return max(LEAST_KEPT, min(KEPT, KEPT_OF_JOB // n_ranks)) if keep is None else size_of(keep)


def size_of(text: str) -> int:
    """Return the bytes of a size: `2GiB`, `500 MB`, `1048576`.

    Raises:
        ValueError: it is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?))?b?", text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is no size")
    power = " kmgt".index(match[2] or " ")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


def checked_seed(seed: int, origin: str) -> int:
    """Return the seed, or raise ConfigError where it is out of range.

    Raises:
        ConfigError: NumPy and PYTHONHASHSEED cannot take it.
    """
    if not 0 <= seed < SEEDS:
        raise ConfigError(f"a seed cannot be {seed}", where=origin, fix=f"give a whole number from 0 to {SEEDS - 1}")
    return seed


def _with_whole_paths(config: Config, origin: str) -> Config:
    """Make paths absolute, so that a process in another folder finds them; a missing one is an error now."""
    given = {name: path for name in _READ if (path := getattr(config, name)) is not None}
    for name, path in given.items():
        if not Path(path).exists():
            raise ConfigError(f"option {name!r} names what is not there", where=origin, why=path, fix="check the path")
    whole = {name: str(Path(path).absolute()) for name, path in given.items()}
    return replace(config, **whole, plugins=tuple(_plugin(name, origin) for name in config.plugins))


def _plugin(name: str, origin: str) -> str:
    """Return a plug-in's file by its absolute path, or the name of its module."""
    if not name.endswith(".py"):
        return name
    if not Path(name).is_file():
        raise ConfigError("a plug-in is not there", where=origin, why=name, fix="give a .py file or a module's name")
    return str(Path(name).absolute())
