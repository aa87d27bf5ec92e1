"""`--gradients-from RUN`: the optimizer gets the gradients that RUN's got, so that only the optimizers differ.

They are put in last: after the program's own clipping, and inside a scaler's or framework's step after it took the
loss scale out and clipped. What is recorded of gradients elsewhere stays the program's own; `update-*.safetensors` of
level tensors holds what the optimizer got. At steps that RUN has no gradients of, the program keeps its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from hypocenter.compare.pairing.manual_map import ManualMap, read_map
from hypocenter.compare.updates.recorded import ParameterUpdate, RecordedUpdates
from hypocenter.compare.values.tensor_file import Stored
from hypocenter.compare.weights.checkpoint import Checkpoint
from hypocenter.compare.weights.imposing import Wanted, given_to
from hypocenter.compare.weights.tensor import Box
from hypocenter.compare.weights.tensor import Tensor as View
from hypocenter.record.reader import open_run
from hypocenter.session.imposed.initial_weights import as_torch
from hypocenter.session.imposed.laid_out import heads_of
from hypocenter.session.imposed.refuse import ImposeError
from hypocenter.session.trained import Trained, trained
from hypocenter.tap.flat_parameters import is_flat
from hypocenter.tap.names import NameMap

OPTION = "--gradients-from"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded(View):
    """A gradient of a recording, as `weights` reads tensors."""

    stored: Stored

    def read(self, box: Box) -> NDArray[Any]:
        """The bits of a box."""
        return self.stored.raw[tuple(slice(start, stop) for start, stop in box)]


class GradientsFrom:
    """Puts a recording's gradients into the tensors that an optimizer is about to use.

    Args:
        path: of the recording.
        map_path: of a map file, or None.
        rank: this rank and how many there are.
        told: a line for run.json.

    Raises:
        HypocenterError: it is no recording, or holds no gradients.
    """

    def __init__(
        self,
        path: str,
        map_path: str | None,
        names: NameMap,
        rank: Callable[[], tuple[int, int]],
        *,
        warn: Callable[[str], None],
        told: Callable[[str], None],
    ) -> None:
        self._path, self._names, self._rank, self._warn = path, names, rank, warn
        run = open_run(path)
        self._ranks = run.ranks
        self._updates = RecordedUpdates(run)
        self._manual: ManualMap | None = read_map(Path(map_path)) if map_path else None
        if not self._updates.steps:
            raise no_gradients(path)
        told(f"gradients of {self._shown_steps} from {path}")

    def before_rule(self, optimizer: Optimizer, step: int) -> None:
        """Gradients are final: put in RUN's of this step.

        Raises:
            HypocenterError: a parameter that has a gradient gets none, or one of another shape.
        """
        if step not in self._updates.steps:
            self._warn(f"{Path(self._path).name} holds gradients of {self._shown_steps} only: others are the program's")
            return
        held = trained(optimizer, self._names)
        source = {one.name: one for one in self._updates.of(step, self._source_rank())}
        wanted = [one for one in held if one.tensor.requires_grad or one.tensor.grad is not None]
        views = self._views(source, [one for one in wanted if one.name not in source or _has(source[one.name])])
        with torch.no_grad():
            for one in wanted:
                view = views.get(one.name)
                if view is None:  # RUN's parameter had no gradient at this step either
                    one.tensor.grad = None
                else:
                    _put(one, view, source.get(one.name))

    @property
    def _shown_steps(self) -> str:
        """ "steps 0, 1" """
        steps = self._updates.steps
        more = f" and {len(steps) - 8} more" if len(steps) > 8 else ""
        return f"step{'s' * (len(steps) > 1)} {', '.join(map(str, steps[:8]))}{more}"

    def _source_rank(self) -> int:
        """Rank for rank where there are as many; else the first, if it has whole tensors (shapes tell)."""
        rank, world_size = self._rank()
        return rank if world_size == len(self._ranks) and rank in self._ranks else self._ranks[0]

    def _views(self, source: Mapping[str, ParameterUpdate], wanted: Sequence[Trained]) -> Mapping[str, View]:
        flat = next((one.name for one in wanted if is_flat(one.tensor)), None)
        if flat is not None:
            raise ImposeError(
                f"gradients cannot be put into {flat!r}", where=OPTION, why="FSDP keeps it in a flat parameter",
                fix="use FSDP2 (fully_shard), or DDP",
            )  # fmt: skip
        tensors: dict[str, View] = {
            name: Recorded(shape=one.gradient.shape, dtype=one.gradient.dtype, stored=one.gradient)
            for name, one in source.items()
            if one.gradient is not None
        }
        roots = self._names.roots()
        checkpoint = Checkpoint(path=Path(self._path), kind="gradients", tensors=tensors)
        given = given_to(
            [
                Wanted(
                    names=(one.name, *self._other_names(one)),
                    shape=tuple(_local(one.tensor).shape),
                    dtype=str(one.tensor.dtype).removeprefix("torch."),
                )
                for one in wanted
            ],
            checkpoint,
            settings=heads_of(roots[0]) if roots else {},
            manual=self._manual,
            what="gradients",
        )
        return given.views

    def _other_names(self, one: Trained) -> tuple[str, ...]:
        names = self._names.param_names(one.parameter) if one.parameter is not None else ()
        return tuple(name for name in names if name != one.name)


def no_gradients(path: str) -> ImposeError:
    """The recording has nothing to give."""
    return ImposeError(
        "the recording holds no gradients", where=f"{OPTION} {path}",
        why="only level tensors keeps them, at the steps of its schedule",
        fix="record it with `hypocenter run --level tensors --schedule 0,1 ...`",
    )  # fmt: skip


def _has(update: ParameterUpdate) -> bool:
    return update.gradient is not None


def _put(one: Trained, view: View, source: ParameterUpdate | None) -> None:
    gradient = as_torch(view, tuple((0, n) for n in view.shape))
    scale = source.grad_scale if source is not None else 1.0
    if scale != 1.0 and math.isfinite(scale):
        gradient = gradient / scale
    if one.tensor.grad is None or one.tensor.grad.layout is not torch.strided:
        one.tensor.grad = torch.zeros_like(one.tensor)
    _local(one.tensor.grad).copy_(gradient)


def _local(tensor: Any) -> Tensor:
    return (tensor.to_local() if hasattr(tensor, "to_local") else tensor).detach()
