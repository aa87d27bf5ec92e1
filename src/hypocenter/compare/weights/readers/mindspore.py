"""MindSpore's checkpoints: .ckpt files, its safetensors, and rank folders that are merged by their strategy files."""

from __future__ import annotations

import re
from pathlib import Path

from hypocenter.compare.weights.archive import is_archive
from hypocenter.compare.weights.catalogue import reader
from hypocenter.compare.weights.checkpoint import Checkpoint, CheckpointError, Tensor
from hypocenter.compare.weights.ckpt_file import Held, looks_like_ckpt, read_ckpt
from hypocenter.compare.weights.folder import indexed_files, settings_beside
from hypocenter.compare.weights.safetensors_file import read_header
from hypocenter.compare.weights.strategy import Layout, Strategy, read_strategies
from hypocenter.compare.weights.views import Patch, Tiled
from hypocenter.optimizers.rule import words_of

_RANK = re.compile(r"rank_(\d{1,6})$")
_STEP = re.compile(r"-(\d{1,12})_(\d{1,12})\.(ckpt|safetensors)$")  # epoch and step, as ModelCheckpoint names files
_SUFFIXES = (".ckpt", ".safetensors")
_NO_WEIGHTS = re.compile(r"strategy|group_info|_breakpoint\.")
_OF_MINDSPORE = re.compile(rb'"format"\s*:\s*"ms"')
_N_START = 1 << 14  # bytes of a safetensors header in which its remarks are looked for
_SLOTS = frozenset({"stat", "accu_grads", "master_weights", "muon_m", "fp32_params"})
"""What MindSpore's optimizers put in front of a parameter's name to name what they keep of it, beside their state."""
_COUNTERS = frozenset({
    "global_step", "epoch_num", "step_num", "learning_rate", "loss_scale", "scale_sense", "beta1_power", "beta2_power",
    "current_iterator_step", "last_overflow_iterator_step", "state_step", "momentum", "cur_step",
})  # fmt: skip
"""Scalars that are saved beside the network."""
_SHOWN = 4
_MOST_MISSING = 1024  # times as many devices as there are ranks: that is no strategy of this checkpoint


def accepts(path: Path) -> bool:
    """Return whether it is a file of MindSpore, a folder of them, or a folder of rank folders."""
    if not path.is_dir():
        return _is_file(path)
    of_ranks = [file for folder in _ranks(path).values() for file in _files(folder)]
    if of_ranks:
        return of_ranks[0].suffix == ".safetensors" or _is_file(of_ranks[0])
    return any(_is_file(file) for file in _files(path)[:1])


@reader("mindspore", order=25, accepts=accepts)
def read(path: Path) -> Checkpoint:
    """A .ckpt file of MindSpore, its safetensors, or a folder of rank_N folders beside strategy files."""
    notes: list[str] = []
    if path.is_dir() and _ranks(path):
        held = _merged(path, notes)
    else:
        held = _joined(path)
    tensors = _weights(held, notes)
    return Checkpoint(path=path, kind="mindspore", tensors=tensors, settings=settings_beside(path), notes=tuple(notes))


def _is_file(path: Path) -> bool:
    if path.suffix == ".safetensors":
        with path.open("rb") as file:
            return bool(_OF_MINDSPORE.search(file.read(_N_START)))
    return not is_archive(path) and (looks_like_ckpt(path) or _is_damaged(path))


def _is_damaged(path: Path) -> bool:
    """Return whether it may be a damaged file of MindSpore: it is so named, and is no pickle."""
    with path.open("rb") as file:
        return path.suffix == ".ckpt" and file.read(1) != b"\x80"


def _files(folder: Path) -> list[Path]:
    found = [file for suffix in _SUFFIXES for file in sorted(folder.glob(f"*{suffix}")) if file.is_file()]
    return [file for file in found if not _NO_WEIGHTS.search(file.name)]


def _joined(path: Path) -> Held:
    """Read the one file, or all files of a folder."""
    if path.is_file():
        return _held(path)
    tensors: dict[str, Tensor] = {}
    others: list[str] = []
    files = _files(path)
    if all(file.suffix == ".safetensors" for file in files):
        files = list(indexed_files(path, "*.safetensors"))
    for file in files:
        held = _held(file)
        for name, tensor in held.tensors.items():
            if name in tensors:
                where, fix = f"{file}: {name[:200]}", "give one file"
                raise CheckpointError("two files hold the same tensor", where=where, fix=fix)
            tensors[name] = tensor
        others += held.others
    return Held(tensors=tensors, others=tuple(others))


def _held(path: Path) -> Held:
    return Held(tensors=dict(read_header(path).tensors)) if path.suffix == ".safetensors" else read_ckpt(path)


def _weights(held: Held, notes: list[str]) -> dict[str, Tensor]:
    """Return the tensors of the network without optimizer state and counters; say in `notes` what was left out."""
    kept: dict[str, Tensor] = {}
    n_state = 0
    others, slots = list(held.others), _SLOTS.union(words_of("SGD"))
    for name, tensor in held.tensors.items():
        slot, _, parameter = name.partition(".")
        if slot in slots and parameter in held.tensors:
            n_state += 1
        elif name in _COUNTERS and tensor.n <= 1:
            others.append(name)
        else:
            kept[name] = tensor
    if not kept:
        return held.tensors
    left = [f"{n_state:,} tensor{'s'[: n_state > 1]} of the optimizer"] if n_state else []
    left += [name[:100] for name in others[:_SHOWN]]
    left += [f"{len(others) - _SHOWN:,} more"] if len(others) > _SHOWN else []
    notes += [f"not read: {', '.join(left)}"] if left else []
    return kept


# Rank folders


def _ranks(path: Path) -> dict[int, Path]:
    found = ((_RANK.fullmatch(folder.name), folder) for folder in sorted(path.glob("rank_*")) if folder.is_dir())
    return {int(match[1]): folder for match, folder in found if match and _files(folder)}


def _chosen(ranks: dict[int, Path], notes: list[str]) -> dict[int, Path]:
    """Return one file of each rank: the only one, or that of the last epoch and step that all ranks have."""
    files = {rank: _files(folder) for rank, folder in ranks.items()}
    if all(len(of_rank) == 1 for of_rank in files.values()):
        return {rank: of_rank[0] for rank, of_rank in files.items()}
    steps: dict[int, dict[tuple[int, int], Path]] = {}
    for rank, of_rank in files.items():
        found = [((int(match[1]), int(match[2])), file) for file in of_rank if (match := _STEP.search(file.name))]
        steps[rank] = dict(found)
        if len(steps[rank]) != len(of_rank):
            why = "several files, and their names do not tell epoch and step"
            fix = "leave one file in each rank folder"
            raise CheckpointError("which file is meant is not known", where=str(ranks[rank]), why=why, fix=fix)
    common = set.intersection(*(set(of_rank) for of_rank in steps.values()))
    if not common:
        where = str(next(iter(ranks.values())).parent)
        raise CheckpointError("no step is in all rank folders", where=where, fix="copy all of them")
    last = max(common)
    notes.append(f"of epoch {last[0]}, step {last[1]}: the last that all ranks have")
    return {rank: of_rank[last] for rank, of_rank in steps.items()}


def _merged(path: Path, notes: list[str]) -> Held:
    ranks = _ranks(path)
    files = _chosen(ranks, notes)
    strategies = _strategies(path)
    strategy = read_strategies(strategies)
    if not any(strategy.values()):
        if len(files) == 1:
            return _held(next(iter(files.values())))
        raise CheckpointError(
            "how the ranks' tensors are cut is not told", where=str(path),
            why=f"{len(files)} rank folders, no strategy file with layouts in or beside them",
            fix="put strategy/ckpt_strategy_rank_*.ckpt (of strategy_ckpt_save_file), or the merged one, beside it",
        )  # fmt: skip
    held = {rank: _held(file) for rank, file in files.items()}
    n_devices = next(layout.n_devices for stage in strategy.values() for layout in stage.values())
    if n_devices > _MOST_MISSING * len(ranks):
        why = f"{len(ranks):,} rank folders, {n_devices:,} devices in {strategies[0].name}"
        raise CheckpointError("the strategy is not of this checkpoint", where=str(path), why=why)
    others = tuple(dict.fromkeys(name for one in held.values() for name in one.others))
    tensors: dict[str, Tensor] = {}
    for name, stage in _owners(held, n_devices).items():
        local = {r % n_devices: one for r, one in held.items() if r // n_devices == stage and name in one.tensors}
        layout = _layout_of(name, stage, strategy, path)
        parts = {device: one.tensors[name] for device, one in local.items()}
        where = f"{path}: {name[:200]}"
        tensors[name] = _whole(parts, layout, where, first=stage * n_devices) if layout else _copy(parts, where)
    n_stages = len({rank // n_devices for rank in held})
    stages = f"{n_stages} pipeline stage{'s'[: n_stages > 1]}"
    notes.insert(0, f"merged of {len(held)} ranks in {stages}, by {strategies[0].name}")
    return Held(tensors=tensors, others=others)


def _owners(held: dict[int, Held], n_devices: int) -> dict[str, int]:
    """Return for each tensor the first stage that has it; a shared one is on several."""
    found: dict[str, int] = {}
    for rank in sorted(held):
        for name in held[rank].tensors:
            found.setdefault(name, rank // n_devices)
    return found


def _layout_of(name: str, stage: int, strategy: Strategy, path: Path) -> Layout | None:
    """Return how a tensor is cut; None when its stage's strategy does not name it, so that it is not cut."""
    if stage not in strategy:
        stages = ", ".join(str(one) for one in sorted(strategy))
        raise CheckpointError(
            f"no strategy file is of pipeline stage {stage}", where=str(path), why=f"there are those of stage {stages}",
            fix="copy the strategy files of all ranks, or merge them with mindspore.merge_pipeline_strategys",
        )  # fmt: skip
    return strategy[stage].get(name)


def _copy(parts: dict[int, Tensor], where: str) -> Tensor:
    if len({(part.shape, part.dtype) for part in parts.values()}) > 1:
        raise CheckpointError("ranks hold different shapes of a tensor that no strategy file names", where=where)
    return parts[min(parts)]


def _whole(parts: dict[int, Tensor], layout: Layout, where: str, first: int) -> Tensor:
    """Put a tensor together from the slices of a stage's devices. `first`: the stage's first rank."""
    shapes = {(part.shape, part.dtype) for part in parts.values()}
    shape, dtype = next(iter(shapes))
    if layout.is_uneven:
        raise CheckpointError("a tensor is cut unevenly, which is not merged", where=where, why="param_split_shape")
    if len(shapes) > 1 or len(layout.cuts) != len(shape) or (layout.optimizer > 1 and not shape):
        why = f"{len(layout.cuts)} dimensions in the strategy, shapes {sorted(str(list(one)) for one, _ in shapes)[:4]}"
        raise CheckpointError("the ranks' tensors and the strategy do not go together", where=where, why=why)
    patches: dict[tuple[int, ...], Patch] = {}
    missing: dict[tuple[int, ...], int] = {}
    for device in range(layout.n_devices):
        at, part = layout.place(device)
        rows = (at[0] * layout.optimizer + part, *at[1:]) if at else ()
        offset = tuple(i * size for i, size in zip(rows, shape, strict=True))
        if device in parts:
            patches.setdefault(rows, Patch(offset=offset, tensor=parts[device]))
        else:
            missing.setdefault(rows, first + device)
    lost = [rank for rows, rank in missing.items() if rows not in patches]
    if lost:
        why = f"rank {lost[0]} should have a part of it" + (f", {len(lost) - 1} more too" if lost[1:] else "")
        raise CheckpointError("a rank is missing", where=where, why=why, fix="copy all rank folders")
    counts = layout.counts
    counts = (counts[0] * layout.optimizer, *counts[1:]) if counts else ()
    whole = tuple(n * size for n, size in zip(counts, shape, strict=True))
    if whole == shape:
        return parts[min(parts)]
    return Tiled(shape=whole, dtype=dtype, patches=tuple(patches[key] for key in sorted(patches)))


def _strategies(path: Path) -> list[Path]:
    """Return the strategy files in a folder of ranks or beside it: those of the ranks, else a merged one."""
    for folder in (path / "strategy", path.parent / "strategy", path, path.parent):
        found = [file for pattern in ("*strategy*.ckpt", "*strategy*.json") for file in sorted(folder.glob(pattern))]
        found = [file for file in found if file.is_file() and file.stat().st_size]
        of_ranks = [file for file in found if "_rank_" in file.name]
        kinds = {file.suffix for file in of_ranks}
        if of_ranks or found:
            return [file for file in of_ranks or found if len(kinds) < 2 or file.suffix == ".ckpt"]
    return []
