"""One checkpoint rewritten with the names and layouts of another, or of a naming: views in, files out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hypocenter.compare.pairing.manual_map import ManualMap
from hypocenter.compare.weights.catalogue import read_checkpoint
from hypocenter.compare.weights.checkpoint import Checkpoint, CheckpointError, Tensor, boxes
from hypocenter.compare.weights.differ import compare
from hypocenter.compare.weights.lay import lay
from hypocenter.compare.weights.match import match_checkpoints
from hypocenter.compare.weights.views import cast
from hypocenter.compare.weights.writer import write_weights
from hypocenter.in_words import some

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """What was written, and that it was read again and found to be the same bits."""

    path: Path
    files: tuple[Path, ...]
    n_tensors: int
    n_bytes: int
    notes: tuple[str, ...] = ()


def convert(
    source: Checkpoint,
    target: Checkpoint,
    out: Path,
    *,
    manual: ManualMap | None = None,
    dtype: str | None = None,
    max_shard_bytes: int,
) -> Converted:
    """Write the source's values with the target's names, order, shapes and fusions; then read them back to check.

    Args:
        target: a checkpoint, or what `targets.planned` gives.
        out: a file that ends in .safetensors or .ckpt (MindSpore), or a folder for shards and their index.
        dtype: of all floating-point tensors; as in the source when not given.

    Raises:
        CheckpointError: tensors are left over on one side, or an order is not known; nothing is written then.
        ExistsError: `out` is there already.
    """
    views, notes = converted_views(source, target, manual)
    if dtype is not None:
        views = {name: cast(view, dtype) for name, view in views.items()}
    files = write_weights(views, out, max_shard_bytes=max_shard_bytes)
    _verify(views, out)
    n_bytes = sum(file.stat().st_size for file in files)
    return Converted(path=out, files=tuple(files), n_tensors=len(views), n_bytes=n_bytes, notes=tuple(notes))


def converted_views(
    source: Checkpoint, target: Checkpoint, manual: ManualMap | None = None
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the target's tensors by name, as views of the source's, and notes about them."""
    matched = match_checkpoints(source, target, manual)
    left = matched.matching.unmatched_candidate, matched.matching.unmatched_baseline
    for cards, what in zip(left, ("the source has no", "the target has no place for"), strict=True):
        if cards:
            raise CheckpointError(
                f"{what} {some((card.spot.site for card in cards), _SHOWN)}",
                where=f"{source.path} as {target.path}", fix="pair them with --map; `weights map A B` drafts one",
            )  # fmt: skip
    views: dict[str, Tensor] = {}
    notes: list[str] = (
        [f"left out, as it is computed: {', '.join(matched.negligible[:_SHOWN])}"] if matched.negligible else []
    )
    for pair in sorted(matched.matching.pairs, key=lambda pair: pair.by == "tied"):
        if pair.certainty < 1:
            notes.append(f"{pair.candidate[0].site} is paired by {pair.by} only: {pair.why}")
        for laid in lay(pair, source, target, pad=True):
            if laid.view is None:
                raise CheckpointError(
                    f"how the parts of {laid.name!r} lie is not known", where=str(source.path),
                    why="neither a configuration nor the values tell the number of query groups",
                    fix="give --heads N --groups N, or put the config.json beside the weights",
                )  # fmt: skip
            if laid.name not in views:
                views[laid.name] = laid.view
            elif compare(views[laid.name], laid.view, ulp=0).verdict != "equal":
                what = f"the target ties {laid.name!r}, the source does not: {pair.baseline[0].site} has other values"
                raise CheckpointError(what, where=str(source.path), fix="convert to a target that is not tied")
    return {name: views[name] for name in target.tensors if name in views}, notes


def _verify(views: dict[str, Tensor], out: Path) -> None:
    """Read again what was written. Raises CheckpointError when a bit differs: the disk is not to be trusted."""
    written = read_checkpoint(out).tensors
    for name, view in views.items():
        found = written.get(name)
        if found is None or found.shape != view.shape or found.dtype != view.dtype:
            raise CheckpointError("what was written is not there", where=f"{out}: {name}")
        for box in boxes(view.shape):
            a, b = (np.atleast_1d(np.ascontiguousarray(t.read(box))).view(np.uint8) for t in (view, found))
            if not np.array_equal(a, b):
                raise CheckpointError("what was written reads back differently", where=f"{out}: {name}")
