"""One side's batches, as a recording with `--save-batches` holds them, and what its configuration says of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hypocenter.checklist.checklist import Configuration
from hypocenter.compare.values.tensor_file import TensorFile, open_tensor_file
from hypocenter.errors import CorruptRecordingError
from hypocenter.record.facts_file import Facts, ModuleFacts
from hypocenter.record.layout import batches_directory
from hypocenter.record.reader import RecordedRun

Ids = npt.NDArray[np.int64]
IGNORED = -100  # torch.nn.functional.cross_entropy's ignore_index
_IDS = ("input_ids", "ids", "tokens", "decoder_input_ids", "src", "x", "in[0]")  # arguments, the likeliest first
_LABELS = ("labels", "lm_labels", "label", "targets", "target")
_MASKS = ("attention_mask", "padding_mask", "mask")
_WORDS = ("tok", "word", "wte", "shared", "embed_tokens")  # in names of embeddings of tokens
_MOST_FILES = 256  # of one side
_MOVES, _MOVED = (1, 0, 2, -1), 0.5  # of the places: labels that are left out are another number
SPECIAL = ("bos", "eos", "pad")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One micro-batch of one rank; rows are samples."""

    step: int
    microbatch: int
    rank: int
    ids: Ids  # samples × places
    labels: Ids | None = None  # as they were given, to the model or to the loss; samples × places
    target: Ids | None = None  # the token that the loss asks for at each place, -1 where it asks for none
    mask: Ids | None = None  # 0: padding


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What the checks know of one side."""

    name: str  # baseline, candidate
    batches: tuple[Batch, ...] = ()
    vocabulary: int | None = None  # rows of the embedding, or as configured
    special: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # bos, eos, pad -> ids, as configured
    tokenizer: Mapping[str, int] = field(default_factory=dict)  # bos, eos, pad -> id, as its files say
    problems: tuple[str, ...] = ()


def side_of(name: str, run: RecordedRun, configuration: Configuration | None = None) -> Side:
    """Read all that the checks need of a recording; what cannot be read is a problem, never an error."""
    problems: list[str] = []
    return Side(
        name=name, batches=tuple(_batches(run, problems)), vocabulary=_vocabulary(run.facts(), configuration),
        special=_special(configuration), problems=tuple(problems),
    )  # fmt: skip


def batches_of_step(run: RecordedRun, step: int) -> tuple[Batch, ...]:
    """Return the batches of one step that were kept and can be read."""
    return tuple(_batches(run, [], f"step-{step:06d}"))


def _batches(run: RecordedRun, problems: list[str], folders: str = "step-*") -> Iterator[Batch]:
    n_files = 0
    for rank in run.ranks:
        for path in sorted(batches_directory(run.directory, rank).glob(f"{folders}/mb-*.safetensors")):
            n_files += 1
            if n_files > _MOST_FILES:
                problems.append(f"only the first {_MOST_FILES} batches were looked at")
                return
            try:
                found = _batch(open_tensor_file(path), path, rank)
            except CorruptRecordingError as error:
                problems.append(f"{path.name} of rank {rank}: {error.why}")
                continue
            if found is not None:
                yield found


def _batch(file: TensorFile, path: Path, rank: int) -> Batch | None:
    given = {name: _integers(stored.raw) for name, stored in file.tensors.items() if stored.dtype != "float32"}
    target = given.pop("target", None)
    model = {name.partition("|")[2]: values for name, values in given.items() if name.startswith("model|")}
    loss = [values for name, values in sorted(given.items()) if name.startswith("loss|")]
    ids = _first(model, _IDS) if any(name in model for name in _IDS) else _first_matrix(model.values())
    if ids is None or ids.ndim != 2:
        return None
    labels = _first(model, _LABELS)
    if labels is None:
        labels = next((values for values in loss if values.size <= ids.size and values.ndim <= 2), None)
    if labels is None:  # a second argument without a name
        labels = next((v for v in model.values() if v is not ids and v.shape == ids.shape and _is_moved(v, ids)), None)
    mask = _first(model, _MASKS)
    return Batch(
        step=int(path.parent.name.rpartition("-")[2]), microbatch=int(path.stem.rpartition("-")[2]), rank=rank,
        ids=ids, labels=_as(labels, ids), target=_as(target, ids), mask=mask if _is_like(mask, ids) else None,
    )  # fmt: skip


def _integers(raw: npt.NDArray[Any]) -> Ids:
    return np.ascontiguousarray(raw).astype(np.int64, copy=False).reshape(raw.shape)


def _first(given: Mapping[str, Ids], names: Sequence[str]) -> Ids | None:
    return next((given[name] for name in names if name in given), None)


def _first_matrix(given: Any) -> Ids | None:
    """Return the first argument that is samples × places and no mask, where names do not tell; else None."""
    return next((values for values in given if values.ndim == 2 and values.max(initial=0) > 1), None)


def _as(values: Ids | None, ids: Ids) -> Ids | None:
    """Return the values laid out as the ids are; None where that cannot be done in just one way."""
    if values is None:
        return None
    if values.shape == ids.shape:
        return values
    if values.ndim == 2 and values.shape == ids.shape[::-1]:
        return values.T
    if values.size == ids.size:
        return values.reshape(ids.shape)
    if values.size % len(ids) == 0 and 0 < ids.shape[1] - values.size // len(ids) <= 2:  # places cut off for the shift
        cut = values.reshape(len(ids), -1)
        return np.pad(cut, ((0, 0), (0, ids.shape[1] - cut.shape[1])), constant_values=IGNORED)
    return None


def _is_moved(values: Ids, ids: Ids) -> bool:
    """Return whether one holds the other nearly everywhere, moved by up to two places."""
    n = ids.shape[1]
    pairs = ((values[:, max(-by, 0) : n - max(by, 0)], ids[:, max(by, 0) : n + min(by, 0)]) for by in _MOVES)
    return any(one.size and float((one == other).mean()) > _MOVED for one, other in pairs)


def _is_like(mask: Ids | None, ids: Ids) -> bool:
    return mask is not None and mask.shape == ids.shape


def _vocabulary(facts: Facts | None, configuration: Configuration | None) -> int | None:
    """Return how many ids there are: the rows of the token embedding, else the configured size; None: not known."""
    embeddings = [m for m in facts.modules if _rows(m) is not None] if facts is not None else []
    named = [m for m in embeddings if any(word in m.path.lower() for word in _WORDS)]
    chosen = named[0] if named else max(embeddings, key=lambda m: _rows(m) or 0, default=None)
    if chosen is not None:
        return _rows(chosen)
    for key in ("model.padded_vocab_size", "model.vocab_size"):
        setting = configuration.settings.get(key) if configuration is not None else None
        if setting is not None and isinstance(setting.value, int):
            return setting.value
    return None


def _rows(module: ModuleFacts) -> int | None:
    rows = module.attributes.get("num_embeddings")
    if rows is None and "Embedding" in module.kind:  # MindSpore's word
        rows = module.attributes.get("vocab_size")
    return rows if isinstance(rows, int) else None


def _special(configuration: Configuration | None) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for name in SPECIAL if configuration is not None else ():
        setting = configuration.settings.get(f"data.{name}_token_id") if configuration is not None else None
        value = setting.value if setting is not None else None
        several = value if isinstance(value, tuple) else (value,)
        ids = tuple(one for one in several if isinstance(one, int) and not isinstance(one, bool) and one >= 0)
        if ids:
            found[name] = ids
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a check saw. `value` is what the two sides are compared by; None: it cannot be told, and `why` says why."""

    value: str | None
    why: str = ""
    fault: str = ""  # what is wrong whatever the other side has
    fix: str = ""


Check = Callable[[Side], Seen]
