"""The arguments that Megatron-LM keeps in its checkpoints; nothing in a checkpoint is executed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypocenter.checklist.catalogue import Source, reader
from hypocenter.checklist.checklist import ConfigurationError, Entry, Given, Value
from hypocenter.checklist.words import plain
from hypocenter.compare.weights.archive import is_archive
from hypocenter.compare.weights.checkpoint import CheckpointError
from hypocenter.compare.weights.readers.torch_file import open_torch
from hypocenter.compare.weights.unpickler import DType, PlainObject

_FILES = ("common.pt", "model_optim_rng.pt", "model_rng.pt", "mp_rank_*/model_optim_rng.pt", "mp_rank_*/model_rng.pt")
_LATEST = "latest_checkpointed_iteration.txt"


def _accepts(source: Source) -> float:
    if source.is_directory:
        return 0.9 if _file(source.path) is not None else 0.0
    return 0.9 if source.start[:4] == b"PK\3\4" else 0.3 if source.path.suffix in (".pt", ".pth") else 0.0


@reader("megatron-checkpoint", accepts=_accepts)
def read(source: Source) -> Given:
    """A checkpoint of Megatron-LM with its `args`: the file of a rank, its folder, or the folder above."""
    path = _file(source.path) if source.is_directory else source.path
    if path is None or not is_archive(path):
        raise ConfigurationError("no checkpoint with arguments", where=str(source.path), fix="give model_optim_rng.pt")
    content = _content(path)
    arguments = content.get("args") if isinstance(content, dict) else None
    values = arguments.attributes if isinstance(arguments, PlainObject) else arguments
    if not isinstance(values, dict) or not values:
        raise ConfigurationError(
            "the checkpoint has no arguments", where=str(path), why="Megatron-LM keeps them under 'args'",
            fix="give the launch script or the log instead",
        )  # fmt: skip
    entries = tuple(_entries(values, path.name))
    iteration = content.get("iteration")
    notes = (f"{path.name}: as of iteration {iteration}",) if isinstance(iteration, int) else ()
    return Given(kind="megatron-checkpoint", table="megatron", entries=entries, notes=notes)


def _content(path: Path) -> Any:
    try:
        return open_torch(path).content
    except CheckpointError as error:
        if "transformers.training_args" not in error.what:
            raise
        raise ConfigurationError(
            "TrainingArguments as a pickle are not read", where=str(path), why="a pickle is a program",
            fix="write them as JSON: open('training_args.json', 'w').write(args.to_json_string())",
        ) from error  # fmt: skip


def _entries(values: dict[Any, Any], name: str) -> Iterator[Entry]:
    for key, found in values.items():
        value = _plain(found)
        yield Entry(key=str(key)[:200], value=value, spelled=f"{key}={value}"[:300], where=f"{name}: args")


def _plain(found: Any) -> Value:
    if isinstance(found, DType):
        return found.name
    if isinstance(found, PlainObject):
        return found.kind.rpartition(".")[2]
    if isinstance(found, (list, tuple)):
        return plain([_plain(part) for part in found])
    if isinstance(found, (bool, int, float, str)) or found is None:
        return plain(found)
    return type(found).__name__


def _file(path: Path) -> Path | None:
    """Return the file of a folder that holds the arguments, of the latest iteration where there are several."""
    latest = path / _LATEST
    if latest.is_file():
        said = latest.read_text(encoding="utf-8", errors="replace").strip()[:20]
        path = path / (
            "release" if said == "release" else f"iter_{int(said):07d}" if re.fullmatch(r"\d+", said) else "?"
        )
    found = [file for pattern in _FILES for file in sorted(path.glob(pattern)) if file.is_file()]
    return found[0] if found else None
