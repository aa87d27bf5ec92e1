"""The fields of `Config` as flags of a command, so that an option is declared once and is the same everywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import click

from hypocenter.config import Config
from hypocenter.errors import ConfigError
from hypocenter.schedule import parse

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

HELP: dict[str, str] = {
    "level": "How much is recorded.",
    "schedule": "Steps at which a level above sentinel records: every=N, 0,5-8,100-120 or never.",
    "param_schedule": "Steps at which parameters and optimizer state are summarised (level modules and up).",
    "sites": "Record only sites that match this shell glob. May be repeated.",
    "exclude": "Leave out sites that match this shell glob. May be repeated.",
    "trace_batches": "Micro-batches, counted from 0 over the run, to record at level modules: 1,3.",
    "stop_after_batch": "End training after this micro-batch.",
    "stop_after_step": "End training after this optimizer step, counted from 0.",
    "impose_lr": "Make every update with this learning rate, whatever the scheduler says; 0: no parameter changes.",
    "save_initial_weights": "Write parameters and buffers as they are before the first step.",
    "initial_weights": "Checkpoint, or recording made with --save-initial-weights, that the model is to start from.",
    "weights_map": "TOML file that pairs names for --initial-weights and --gradients-from, as `weights map` drafts it.",
    "gradients_from": "Recording of level tensors whose gradients the optimizer gets in place of the program's own.",
    "frames": "How many of the last module frames are kept.",
    "sketch": "Add the sketch to summaries (level modules and up).",
    "histogram": "Make exponent histograms from a strided sample, or from every element.",
    "on_finding": "What to do at the step that failed.",
    "replay": "Re-execute a step that failed, to find the operator.",
    "cure": "Search the smallest float32 island that cures a failed step: within a budget, without one, or not.",
    "max_replays": "Failed steps that are replayed; later ones are only recorded.",
    "replicas": "Steps at which what should be equal over ranks is digested, to find replicas that drift.",
    "collectives": "Steps at which inputs and results of collectives are summed up, to find wrong sums.",
    "sdc_check": "Steps at which each rank repeats its neighbour's micro-batch, to find wrong hardware.",
    "calibrate": "Steps at which perturbed replays measure the noise floor for `diff`; without a value: step 0.",
    "health": "Steps at which activations, attention, routers and updates are looked at; without a value: every=50.",
    "audit": "Steps that are done again to see whether each gradient is that of its micro-batches; no value: all.",
    "relations": "Steps at which what must not matter (samples, later tokens, padding, labels) is changed in replays.",
    "agree": "Ranks tell each other over a side group that a step has failed.",
    "node_files": "Of 64 ranks and more a process beside each node's first rank tells `view` where its ranks are.",
    "agree_timeout_s": "Longest wait, in seconds, of one rank for the others in that.",
    "save_batches": "Keep the integer inputs of this many first steps whole, and which tokens the loss asks for.",
    "keep_mb": "Most memory, in MiB, that kept inputs of one step may pin.",
    "bundle_mb": "Largest bundle, in MiB; larger tensors are cut out of it and named.",
    "compiled_backward": "Probe gradients inside compiled backward; this changes compiled bf16 rounding.",
    "deterministic": "Seed all generators, and take deterministic algorithms.",
    "seed": "Seed of all generators; 42 with --deterministic.",
    "no_dropout": "Drop no value at random.",
    "change": "Set what must not matter to another value, as `twin` does: workers=0. May be repeated.",
    "states": "Steps at which random states are digested; the first three always are.",
    "op_bits": "Keep digests of what every operator reads and writes; `determinism` compares them.",
    "keep": "What a rank may take on disk: 1GiB, or its share of 200GB, if not given; older steps are rolled up.",
    "keep_steps": "How many last steps stay whole; without it 10,000 at level sentinel, above it all that fit.",
    "ship": "Address that the recording is brought to while it grows: s3://bucket/run, gs://, hdfs://, or a folder.",
    "out": "Run directory; a new one under runs/ when not given.",
    "force": "Replace an existing recording.",
    "sinks": "Where else numbers and findings go: console, tensorboard, wandb, mlflow, prometheus, a plug-in's; "
    "NAME=WHERE gives a folder or address. May be repeated.",
    "plugins": "A .py file or module with rules, causes or sinks of your own. May be repeated.",
}
"""What each option does. A test checks that every field of `Config` is here."""

_BARE = {"--calibrate": "0", "--health": "every=50", "--audit": "every=1", "--relations": "1,doubling"}
"""What a flag means that is given without a value, which is a schedule."""
_ALIASES = {"sites": "--site", "sinks": "--sink", "plugins": "--plugin"}


def config_options(command: Decorated) -> Decorated:
    """Decorate a click command with one flag for every field of `Config`, in the order of the fields."""
    hints = get_type_hints(Config)
    for field in reversed(fields(Config)):
        command = _option(field, hints[field.name])(command)
    return command


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a command that were really typed: what `config.resolve(flags=...)` takes."""
    names = [field.name for field in fields(Config)]
    typed = {name: values[name] for name in names if values.get(name) not in (None, ())}
    return {name: ",".join(value) if isinstance(value, tuple) else value for name, value in typed.items()}


def spelled_out(words: list[str], at: int) -> str:
    """Return the word at this place; a flag without a value gets the value that it means."""
    word = words[at]
    if word not in _BARE or (at + 1 < len(words) and _is_schedule(words[at + 1])):
        return word
    return f"{word}={_BARE[word]}"


def _is_schedule(text: str) -> bool:
    try:
        parse(text)
    except ConfigError:
        return False
    return True


def _option(field: Field[Any], hint: Any) -> Callable[[Decorated], Decorated]:
    flag = "--" + field.name.replace("_", "-")
    text = HELP.get(field.name, "")
    if hint is bool and field.name.startswith("no_"):
        return click.option(flag, field.name, is_flag=True, default=None, help=text)
    if hint is bool:
        return click.option(
            f"{flag}/--no-{flag[2:]}", field.name, default=None, help=f"{text} {_default(field)}".strip()
        )
    names = [name for name in (_ALIASES.get(field.name), flag) if name]
    choices = list(get_args(hint)) if get_origin(hint) is Literal else []
    many = get_origin(hint) is tuple
    return click.option(
        *names,
        field.name,
        metavar=_metavar(hint),
        multiple=many,
        help=text if many or field.default is None else f"{text} {_default(field)}",
        shell_complete=lambda ctx, param, typed: [word for word in choices if word.startswith(typed)],
    )


def _default(field: Field[Any]) -> str:
    value = field.default
    return f"[default: {('on' if value else 'off') if isinstance(value, bool) else value}]"


def _metavar(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "[" + "|".join(str(choice) for choice in get_args(hint)) + "]"
    return "N" if hint in (int, float) or int in get_args(hint) else "TEXT"
