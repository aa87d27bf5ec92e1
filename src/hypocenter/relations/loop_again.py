"""What a loop computed in one step, computed once more with every second sample replaced by its neighbour."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hypocenter import own_time
from hypocenter.relations.subject import NO_TIME
from hypocenter.replay.impossible import OutOfTime
from hypocenter.tap.loop_tape import LoopTape, Operation, Slot

CUTS = frozenset({
    "__getitem__", "index_select", "narrow", "stack", "cat", "split", "chunk", "unbind", "take_along_dim",
})  # fmt: skip
"""What takes samples out of what holds more, or puts single ones together."""
_ROUNDING = 1e-5  # relative: the same function at another place of an array


@dataclass(slots=True)
class _Trial:
    """The values of a step in which every second sample is another; those that stay are not in it.

    Attributes:
        rows: which sample stands at each place.
        changed: by number.
        dead: numbers of values that cannot be computed again, or not to the bit.
    """

    rows: Tensor
    changed: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    dead: set[int] = field(default_factory=set[int])


class Again:
    """The operations of one tape with other samples.

    Args:
        tape: of the step.
        n: samples.
        is_loaded: whether a loader has made this tensor of so many samples of its data set.
        until_s: by the clock of our own work.

    Attributes:
        sources: numbers of the values whose rows were replaced: what was loaded, drawn, or given by a module.
    """

    def __init__(self, tape: LoopTape, n: int, is_loaded: Callable[[Tensor], bool], until_s: float = math.inf) -> None:
        self.tape, self.n, self._is_loaded, self._until_s = tape, n, is_loaded, until_s
        self.sources: set[int] = set()

    @functools.cached_property
    def trials(self) -> list[_Trial]:
        """The two trials: the even samples replaced, then the odd ones. Raises OutOfTime."""
        trials: list[_Trial] = []
        for first in (0, 1):
            rows = torch.arange(self.n, device="cpu")
            rows[first::2] += 1 if first == 0 else -1
            rows[rows >= self.n] = self.n - 2
            trials.append(self._with(rows))
        return trials

    def _with(self, rows: Tensor) -> _Trial:
        """Compute the step's operations again with these samples."""
        tape, trial = self.tape, _Trial(rows)
        for number, value in enumerate(tape.values):
            if value.made_by < 0 or value.kind != "made":
                self._begin(number, trial)
            elif number == tape.operations[value.made_by].makes[0]:
                if own_time.now() > self._until_s:
                    raise OutOfTime(NO_TIME)
                self._do(tape.operations[value.made_by], trial)
        return trial

    def _begin(self, number: int, trial: _Trial) -> None:
        """Put other samples into a tensor that no operation has made, if it has a row for each."""
        value = self.tape.values[number]
        if value.kind == "unknown" or not value.is_there:
            trial.dead.add(number)
            return
        tensor = value.tensor
        if value.kind == "outside" and not (tensor.dim() and self._is_loaded(tensor)):
            return  # a table, a constant, a weight
        self._replace(number, trial)

    def _replace(self, number: int, trial: _Trial) -> None:
        tensor = self.tape.values[number].tensor.detach()
        if tensor.dim() and tensor.shape[0] == self.n and tensor.layout == torch.strided:
            new = tensor.index_select(0, trial.rows.to(tensor.device))
            self.sources.add(number)
            if not torch.equal(new, tensor):
                trial.changed[number] = new

    def _do(self, operation: Operation, trial: _Trial) -> None:
        tape = self.tape
        if any(number in trial.dead for number in operation.needs) or not all(
            tape.values[number].is_there for number in (*operation.needs, *operation.makes)
        ):
            trial.dead.update(operation.makes)
            return
        if not any(number in trial.changed for number in operation.needs):
            if operation.name in CUTS and self._is_cut(operation):
                for number in operation.makes:
                    self._replace(number, trial)
            return
        try:
            again, now = _done(operation, tape, {}), _done(operation, tape, trial.changed)
        except Exception:  # it refuses other samples, or needs what is not there
            trial.dead.update(operation.makes)
            return
        for number, same, new in zip(operation.makes, again, now, strict=True):
            was = tape.values[number].tensor.detach()
            if not equal(was, same) or new.shape != was.shape:
                trial.dead.add(number)
            elif not equal(was, new):
                trial.changed[number] = new

    def _is_cut(self, operation: Operation) -> bool:
        """Return whether rows of something larger, or single samples, are put together to a batch."""
        made = self.tape.values[operation.makes[0]].tensor
        if made.shape[:1] != (self.n,) or not operation.needs:
            return False
        return operation.name in ("stack", "cat") or self.tape.values[operation.needs[0]].tensor.numel() > made.numel()

    def goes_along(self, number: int) -> bool:
        """Return whether a value changes just as its samples do, row by row, in both trials."""
        tensor = self.tape.values[number].tensor.detach()
        for trial in self.trials:
            new = trial.changed.get(number)
            if new is None or number in trial.dead or tensor.shape[:1] != (self.n,):
                return False
            if not _close(tensor.index_select(0, trial.rows.to(tensor.device)), new):
                return False
        return True

    def has_moved(self, number: int) -> bool:
        """Return whether rows of samples that were not touched are others, in both trials."""
        tensor = self.tape.values[number].tensor.detach()
        for trial in self.trials:
            new = trial.changed.get(number)
            if new is None or number in trial.dead or tensor.shape[:1] != (self.n,):
                return False
            stays = (trial.rows == torch.arange(self.n, device="cpu")).nonzero().flatten().to(tensor.device)
            if _close(tensor.index_select(0, stays), new.index_select(0, stays)):
                return False
        return True


def _done(operation: Operation, tape: LoopTape, changed: Mapping[int, Tensor]) -> list[Tensor]:
    """Do an operation again, with other values for some; what it writes over is a copy."""

    def value(kept: Any, *, copies: bool = False) -> Any:
        if isinstance(kept, Slot):
            tensor = changed.get(kept.number, tape.values[kept.number].tensor).detach()
            return tensor.clone() if copies else tensor
        if type(kept) in (list, tuple):
            return type(kept)([value(each) for each in kept])
        return kept

    args = tuple(value(each, copies=operation.writes and not i) for i, each in enumerate(operation.args))
    kwargs = {key: value(each) for key, each in operation.kwargs.items()}
    result = operation.function(*args, **kwargs)
    if operation.writes:
        return [args[0]]
    if isinstance(result, Tensor):
        return [result]
    return [each for each in result if isinstance(each, Tensor)]


def equal(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are the same to the bit, up to the kind of a NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_floating_point() or a.is_complex():
        return bool(torch.equal(a.nan_to_num(), b.nan_to_num())) and bool(torch.equal(a.isnan(), b.isnan()))
    return bool(torch.equal(a, b))


def _close(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are the same up to the place in an array at which a function was computed."""
    if a.shape != b.shape:
        return False
    if not (a.is_floating_point() or a.is_complex()):
        return bool(torch.equal(a, b))
    rounding = max(_ROUNDING, 4 * torch.finfo(a.dtype).eps)
    return bool(torch.allclose(a, b, rtol=rounding, atol=1e-30, equal_nan=True))
