"""Which of a checkpoint's tensors each parameter of a model gets: by name, else by the matching of `weights`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypocenter.compare.naming.tables import leaf_of
from hypocenter.compare.pairing.manual_map import ManualMap
from hypocenter.compare.weights.checkpoint import Checkpoint, CheckpointError, Planned, Tensor
from hypocenter.compare.weights.convert import converted_views
from hypocenter.compare.weights.differ import compare
from hypocenter.compare.weights.match import NEGLIGIBLE, match_checkpoints
from hypocenter.in_words import some

_SHOWN = 8  # names of an error
_WRAPPERS = 3  # names in front of all others: `module.`, `model.`, `_orig_mod.`
_MOST_PADDING = 0.1  # of a dimension: a vocabulary that is rounded up, and no other vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A parameter of the model: all its names (several when it is tied), logical shape and format."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The answer: a view for the first name of every parameter, laid as the model has it.

    Attributes:
        unused: tensors of the checkpoint that no parameter got.
        buffers: those of the model's buffers that the checkpoint has, by the model's names.
        how: "by name" or "matched", for the user.
    """

    views: Mapping[str, Tensor]
    unused: tuple[str, ...]
    how: str
    buffers: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    notes: tuple[str, ...] = ()


def given_to(
    wanted: Sequence[Wanted],
    source: Checkpoint,
    *,
    buffers: Iterable[str] = (),
    settings: Mapping[str, int] | None = None,
    manual: ManualMap | None = None,
    is_part: bool = False,
    what: str = "weights",
) -> Given:
    """Return a view for each parameter, or raise an error that names what is missing and what is left over.

    Args:
        buffers: names of the model's buffers: the checkpoint may have them.
        settings: heads and groups of the model, for fused tensors.
        manual: pairs that win.
        what: they are, for errors.
        is_part: the model is a part of what the checkpoint is of: much may be left over.

    Raises:
        CheckpointError: a parameter gets nothing, or not what fits it; tied ones would get different values.
        UnknownNameError, ConfigError: the map is wrong.
    """
    buffers = set(buffers)
    for renamed in () if manual is not None else _spelt(wanted, source):
        for tensors in (renamed, _with_leaves_of(wanted, renamed)):
            by_name = _by_name(wanted, tensors, buffers)
            if by_name is not None:
                return by_name
    if is_part:
        raise _incomplete(wanted, source, buffers, what)
    target = Checkpoint(
        path=Path("(the program's model)"),
        kind="planned",
        tensors={one.names[0]: Planned(shape=one.shape, dtype=one.dtype) for one in wanted},
        settings={**source.settings, **(settings or {})},
    )
    trained = {name: tensor for name, tensor in source.tensors.items() if name not in buffers}
    aliases = {name for one in wanted for name in one.names[1:]}
    same = [name for name in aliases if name in trained]
    kept = {name: tensor for name, tensor in trained.items() if name not in same}
    kept_source = replace(source, tensors=kept)
    try:
        padded = _padded(kept_source, target, manual)
        views, notes = converted_views(kept_source, target, manual)
    except CheckpointError as error:
        raise _incomplete(wanted, source, buffers, what, error) from error
    missing = [one.names[0] for one in wanted if one.names[0] not in views]
    if missing:
        raise _incomplete(wanted, source, buffers, what)
    held = {name: source.tensors[name] for name in buffers if name in source.tensors}
    return Given(views=views, unused=(), how="matched", notes=(*notes, *padded), buffers=held)


def _spelt(wanted: Sequence[Wanted], source: Checkpoint) -> Iterator[Checkpoint]:
    """Yield the checkpoint with its own names, then without prefixes that all share, then with the model's prefix."""
    yield source
    tensors = source.tensors
    for _ in range(_WRAPPERS):
        heads = {name.partition(".")[0] for name in tensors}
        if len(heads) != 1 or not all("." in name for name in tensors):
            break
        tensors = {name.partition(".")[2]: tensor for name, tensor in tensors.items()}
        yield replace(source, tensors=tensors)
    prefix = ""
    for _ in range(_WRAPPERS):
        heads = {one.names[0].removeprefix(prefix).partition(".")[0] for one in wanted}
        if len(heads) != 1:
            break
        prefix += f"{heads.pop()}."
        yield replace(source, tensors={f"{prefix}{name}": tensor for name, tensor in source.tensors.items()})


def _with_leaves_of(wanted: Sequence[Wanted], source: Checkpoint) -> Checkpoint:
    """Return the checkpoint with the model's last parts of names: MindSpore's norm.gamma becomes norm.weight."""
    own = {_with_usual_leaf(name): name for one in wanted for name in one.names}
    renamed = {name: own.get(_with_usual_leaf(name), name) for name in source.tensors}
    if len(set(renamed.values())) < len(renamed):
        return source
    return replace(source, tensors={renamed[name]: tensor for name, tensor in source.tensors.items()})


def _with_usual_leaf(name: str) -> str:
    path, dot, leaf = name.rpartition(".")
    return f"{path}{dot}{leaf_of(leaf)}"


def _padded(source: Checkpoint, target: Checkpoint, manual: ManualMap | None) -> list[str]:
    """Say which tensors get rows of zeros, or lose rows: a padded vocabulary. Raises when it is a large part."""
    notes: list[str] = []
    for pair in match_checkpoints(source, target, manual).matching.pairs:
        if pair.layout.kind != "padded":
            continue
        name, dim = pair.candidate[0].site, pair.layout.dim
        here, there = target.tensors[name].shape[dim], source.tensors[pair.baseline[0].site].shape[dim]
        if abs(here - there) > max(here, there) * _MOST_PADDING:
            raise CheckpointError(f"{name} has {here:,} along dimension {dim}, {pair.baseline[0].site} {there:,}")
        what = f"{here - there:,} zeros added" if here > there else f"the last {there - here:,} left out"
        notes.append(f"{name}: {what} along dimension {dim}")
    return notes


def _by_name(wanted: Sequence[Wanted], source: Checkpoint, buffers: set[str]) -> Given | None:
    """Take each parameter by its name; None where a name is missing, or a shape differs."""
    views: dict[str, Tensor] = {}
    for one in wanted:
        held = [name for name in one.names if name in source.tensors]
        if not held or source.tensors[held[0]].shape != one.shape:
            return None
        view = source.tensors[held[0]]
        for other in held[1:]:
            if source.tensors[other] is not view and compare(view, source.tensors[other], ulp=0).verdict != "equal":
                raise CheckpointError(
                    f"the model ties {held[0]!r} and {other!r}, the checkpoint has other values in each",
                    where=str(source.path), fix="untie the model, or take weights of a model that is tied",
                )  # fmt: skip
        views[one.names[0]] = view
    used = {name for one in wanted for name in one.names} | buffers
    unused = tuple(name for name in source.tensors if name not in used and not NEGLIGIBLE.search(name))
    held = {name: source.tensors[name] for name in buffers if name in source.tensors}
    return Given(views=views, unused=unused, how="by name", buffers=held)


def left_over(names: Sequence[str], source: Path) -> CheckpointError:
    """Return the error that no parameter of the model takes these tensors."""
    return CheckpointError(
        f"the model has no place for {some(names, _SHOWN)}", where=str(source),
        why="with weights left over the model is not the one they are of",
        fix="pair names with --weights-map FILE; `hypocenter weights map A B` drafts one",
    )  # fmt: skip


def _incomplete(
    wanted: Sequence[Wanted], source: Checkpoint, buffers: set[str], what: str, error: CheckpointError | None = None
) -> CheckpointError:
    """Return the error that says what gets no value by name, what no name wants, and what the matching found."""
    missing = [one.names[0] for one in wanted if not any(name in source.tensors for name in one.names)]
    shapes = {name: one.shape for one in wanted for name in one.names}
    other = [
        f"{name} {_of(tensor.shape)}, not {_of(shapes[name])}"
        for name, tensor in source.tensors.items()
        if name in shapes and tensor.shape != shapes[name]
    ]
    used = set(shapes) | buffers
    unused = [name for name in source.tensors if name not in used and not NEGLIGIBLE.search(name)]
    words = [f"no {what} for {some(missing, _SHOWN)}"] if missing else []
    words += [f"another shape: {some(other, _SHOWN)}"] if other else []
    words += [f"left over: {some(unused, _SHOWN)}"] if unused else []
    words += [f"by matching: {error.what}"] if error is not None else []
    return CheckpointError(
        f"the {what} do not fit the model: {len(missing) + len(other)} of {len(wanted)} parameters get none",
        where=str(source.path), why="; ".join(words) or "the names do not fit",
        fix="pair names with --weights-map FILE; `hypocenter weights map A B` drafts one",
    )  # fmt: skip


def _of(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
