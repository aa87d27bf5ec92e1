"""`--gradients-from RUN`, what needs no framework: which of RUN's gradients each parameter gets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from hypocenter.compare.pairing.manual_map import ManualMap, read_map
from hypocenter.compare.updates.recorded import ParameterUpdate, RecordedUpdates
from hypocenter.compare.values.tensor_file import Stored
from hypocenter.compare.weights.checkpoint import Box, Checkpoint, Tensor
from hypocenter.compare.weights.imposing import Wanted, given_to
from hypocenter.record.reader import open_run
from hypocenter.session.imposed.refuse import ImposeError

OPTION = "--gradients-from"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded(Tensor):
    """A gradient of a recording, as `weights` reads tensors."""

    stored: Stored

    def read(self, box: Box) -> NDArray[Any]:
        """Return the bits of a box of the gradient."""
        return self.stored.raw[tuple(slice(start, stop) for start, stop in box)]


class RecordedGradients:
    """The gradients of a recording, by step.

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
        rank: Callable[[], tuple[int, int]],
        *,
        warn: Callable[[str], None],
        told: Callable[[str], None],
    ) -> None:
        self._path, self._rank, self._warn = path, rank, warn
        run = open_run(path)
        self._ranks = run.ranks
        self._updates = RecordedUpdates(run)
        self._manual: ManualMap | None = read_map(Path(map_path)) if map_path else None
        if not self._updates.steps:
            raise no_gradients(path)
        told(f"gradients of {self._shown_steps} from {path}")

    def of(self, step: int) -> Mapping[str, ParameterUpdate] | None:
        """Return the gradients of a step by RUN's names; None, with a warning once, when RUN has none."""
        if step not in self._updates.steps:
            self._warn(f"{Path(self._path).name} holds gradients of {self._shown_steps} only: others are the program's")
            return None
        return {one.name: one for one in self._updates.of(step, self._source_rank())}

    def views(
        self, source: Mapping[str, ParameterUpdate], wanted: Sequence[Wanted], settings: Mapping[str, int]
    ) -> Mapping[str, Tensor]:
        """Return the gradient for each of the wanted parameters, by its first name.

        Args:
            settings: heads and groups of the model.

        Raises:
            HypocenterError: a parameter gets none, or one of another shape.
        """
        tensors: dict[str, Tensor] = {
            name: Recorded(shape=one.gradient.shape, dtype=one.gradient.dtype, stored=one.gradient)
            for name, one in source.items()
            if one.gradient is not None
        }
        checkpoint = Checkpoint(path=Path(self._path), kind="gradients", tensors=tensors)
        return given_to(wanted, checkpoint, settings=settings, manual=self._manual, what="gradients").views

    @property
    def _shown_steps(self) -> str:
        """The steps with gradients, in words: "steps 0, 1"."""
        steps = self._updates.steps
        more = f" and {len(steps) - 8} more" if len(steps) > 8 else ""
        return f"step{'s' * (len(steps) > 1)} {', '.join(map(str, steps[:8]))}{more}"

    def _source_rank(self) -> int:
        """Return the rank of RUN to read: this one if there are as many, else the first (shapes tell if it will do)."""
        rank, world_size = self._rank()
        return rank if world_size == len(self._ranks) and rank in self._ranks else self._ranks[0]


def grad_scale(update: ParameterUpdate | None) -> float:
    """Return what a recorded gradient has to be divided by: 1 where no scale was left in it."""
    scale = update.grad_scale if update is not None else 1.0
    return scale if math.isfinite(scale) and scale else 1.0


def is_without(source: Mapping[str, ParameterUpdate], name: str) -> bool:
    """Return whether RUN has the parameter under this name, and had no gradient of it at this step."""
    return name in source and source[name].gradient is None


def no_gradients(path: str) -> ImposeError:
    """Return the error that says that the recording holds no gradients."""
    return ImposeError(
        "the recording holds no gradients", where=f"{OPTION} {path}",
        why="only level tensors keeps them, at the steps of its schedule",
        fix="record it with `hypocenter run --level tensors --schedule 0,1 ...`",
    )  # fmt: skip
