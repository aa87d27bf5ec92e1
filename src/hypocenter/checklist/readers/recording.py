"""Recordings of `hypocenter run`: what was measured on the program, and the configuration that its model carries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hypocenter.axes import AXES
from hypocenter.checklist.catalogue import Source, reader
from hypocenter.checklist.entry import ConfigurationError, Entry, Given
from hypocenter.checklist.facts import entries
from hypocenter.checklist.tables import read_toml, table
from hypocenter.checklist.words import plain
from hypocenter.record.facts_file import Facts
from hypocenter.record.layout import is_recording
from hypocenter.record.reader import RecordedRun, open_run

_CONFIG = "config."


def _accepts(source: Source) -> float:
    if source.is_directory:
        return 0.95 if is_recording(source.path) else 0.0
    return 0.95 if source.name == "run.json" and {"format", "world_size", "command"} <= source.keys else 0.0


@reader("recording", accepts=_accepts)
def read(source: Source) -> Given:
    """A run directory of Hypocenter, or its run.json: sizes, norms, formats, optimizer as they were measured."""
    path: Path = source.path if source.is_directory else source.path.parent
    run = open_run(path)
    facts = run.facts()
    if facts is None:
        raise ConfigurationError(
            "the recording has no facts", where=str(path), why="rank 0 left no facts.json that can be read",
            fix="record again with `hypocenter run`",
        )  # fmt: skip
    found = (*entries(facts), *_places(run), *_versions(run))
    carried = _carried(facts)
    return Given(kind="recording", table="recording", entries=found, alongside=(carried,) if carried else ())


def _places(run: RecordedRun) -> Iterator[Entry]:
    place = next(iter(run.places.values()), None)
    for axis in AXES if place is not None else ():
        group = place.groups.get(axis) if place is not None else None
        if group:
            yield Entry(
                key=f"place.{axis}", value=len(group), spelled=f"{axis} group of {len(group)} ranks", where="rank.json"
            )


def _versions(run: RecordedRun) -> Iterator[Entry]:
    for name, version in run.run.versions.items():
        yield Entry(key=f"versions.{name}", value=version, spelled=f"{name} {version}", where="run.json")


def _carried(facts: Facts) -> Given | None:
    """The configuration object on the model, as transformers and Megatron-Core put one there."""
    module = next((m for m in facts.modules if any(key.startswith(_CONFIG) for key in m.attributes)), None)
    if module is None:
        return None
    values = {key.removeprefix(_CONFIG): value for key, value in module.attributes.items() if key.startswith(_CONFIG)}
    is_megatron = "num_moe_experts" in values or "layernorm_zero_centered_gamma" in values
    name = "megatron" if is_megatron else "hf_config"
    known = [key for key in values if table(name).knows(key)]
    if len(known) < 3:
        return None
    kind = _model_type(module.kind)
    if not is_megatron and "model_type" not in values and kind:
        values["model_type"] = kind
    found = tuple(
        Entry(
            key=key,
            value=plain(value),
            spelled=f"config.{key}: {value}"[:200],
            where=f"facts.json: {module.path or module.kind}",
        )
        for key, value in values.items()
    )
    return Given(kind="recording", table=name, entries=found)


def _model_type(kind: str) -> str:
    """`llama` of `LlamaForCausalLM`, of the model types that are known."""
    word = kind.lower()
    fitting = [name for name in read_toml("hf_models") if word.startswith(name.replace("_", ""))]
    return max(fitting, key=len, default="")
