"""One term of a loss compares each output with every sample's target: a column meets a row of the same length.

A layer with one output gives [n, 1], and what it is compared with is [n]: every output meets every target, and only
their means are fitted. Other terms may depend on which target belongs to which sample, so the whole loss need not stay
when targets change places. Here they change places at this very operation, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hypocenter.relations.called import BETWEEN_TWO, LossCall
from hypocenter.relations.contracts import Wrong
from hypocenter.relations.facts import Facts
from hypocenter.relations.subject import Place, Ran, Subject
from hypocenter.replay.impossible import OutOfTime
from hypocenter.tap.tape import storage_of

_LEAST_ROWS = 3
_LAYERS = frozenset({"linear", "matmul", "__matmul__", "mm", "addmm", "bilinear"})
"""Give features: where they give one, nobody has put a dimension in to compare all with all."""
_OF_ONE_SHAPE = frozenset({"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"})
"""Are made for tensors of one shape, and torch warns of others: here each output has its own target."""


class _Meetings(TorchFunctionMode):
    """Hears operations in which a column of features, one for each sample, meets a row of as many values.

    Args:
        n: samples.
        change: what the row of the first such operation becomes.

    Attributes:
        rows: the rows that were met, unchanged.
        first: name of the operation that met the first; of the loss that has broadcast both to do so.
    """

    def __init__(self, n: int, change: Callable[[Tensor], Tensor] = lambda row: row) -> None:
        super().__init__()
        self._n, self._change = n, change
        self._columns: dict[int, Tensor] = {}  # held, or an id would come again
        self.rows: list[Tensor] = []
        self.first = ""
        self._broadcast: Any = ()  # the two that met first

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _OF_ONE_SHAPE and any(each is args[0] for each in self._broadcast):
            self.first = name
        is_tuple = bool(args) and isinstance(args[0], tuple)  # of broadcast_tensors
        both = args[0] if is_tuple else args[:2]
        is_first = False
        if name in BETWEEN_TWO and len(both) == 2 and self._meet(*both):
            at, is_first = 0 if both[0].dim() == 1 else 1, not self.rows
            self.rows.append(both[at].detach())
            if is_first:
                self.first = name
                both = (*both[:at], self._change(both[at]), *both[at + 1 :])
                args = (both, *args[1:]) if is_tuple else (*both, *args[2:])
        result = func(*args, **(kwargs or {}))
        self._broadcast = result if is_first and is_tuple else self._broadcast
        is_column = isinstance(result, Tensor) and result.shape == (self._n, 1)
        if is_column and (name in _LAYERS or any(id(each) in self._columns for each in args)):
            self._columns[id(result)] = result
        return result

    def _meet(self, one: Any, other: Any) -> bool:
        if not (isinstance(one, Tensor) and isinstance(other, Tensor)) or one.requires_grad == other.requires_grad:
            return False
        column, row = (one, other) if one.dim() > other.dim() else (other, one)
        return id(column) in self._columns and row.shape == (self._n,) and row.is_floating_point()


def crossed(subject: Subject, facts: Facts, calls: Sequence[LossCall]) -> tuple[LossCall, Wrong] | None:
    """Find an operation that pairs all samples' outputs with all samples' targets. Five forwards more, if one may.

    What it is compared with must be made of the inputs of the model, row by row: its rows must go with theirs. Or it is
    given to a loss of torch that is made for one shape. And the loss must be another one where each meets its own only.

    Args:
        calls: in which tensors of different numbers of dimensions met.
    """
    n = facts.n_rows
    shapes = {(n, 1), (n,)}
    call = next((each for each in calls if {tuple(each.input.shape), tuple(each.target.shape)} == shapes), None)
    if call is None or n < _LEAST_ROWS or not facts.ran.losses or facts.relates_rows:
        return None
    as_it_was = _Meetings(n)
    subject.run(beside=as_it_was)
    if not as_it_was.rows or len(as_it_was.rows[0].unique()) < _LEAST_ROWS:
        return None
    if as_it_was.first not in _OF_ONE_SHAPE and not _goes_with_inputs(subject, as_it_was.rows[0]):
        return None
    limit = facts.tolerance / 10
    in_turn = subject.run(beside=_Meetings(n, lambda row: row.roll(1)))
    all_one = subject.run(beside=_Meetings(n, lambda row: row[:1].expand(n)))
    if _has_moved(facts.ran, in_turn, limit) or not _has_moved(facts.ran, all_one, limit):
        return None
    try:
        paired = subject.run(beside=_Meetings(n, lambda row: row.unsqueeze(1)))
    except (OutOfTime, torch.OutOfMemoryError):
        raise
    except Exception:  # of the user's code: it needs all pairs
        return None
    if not _has_moved(facts.ran, paired, limit):
        return None  # only means are taken, and the loss is the same
    shapes = f"{[*call.input.shape]} and {[*call.target.shape]}"
    return call, Wrong(
        title="a term of the loss does not depend on which target belongs to which sample",
        why=f"{as_it_was.first.strip('_')} of {shapes} meets every output with the targets of all samples, and the "
        "loss stays the same when these change places there",
        remedy="give both the same shape (squeeze or unsqueeze one of them)",
    )  # fmt: skip


def _goes_with_inputs(subject: Subject, row: Tensor) -> bool:
    """Return whether other samples in the places of some change this row there, and nowhere else."""
    of_others = _Meetings(len(row))
    subject.run(_with_neighbours(subject, len(row)), beside=of_others)
    touched = torch.arange(len(row), device=row.device) % 2 == 0
    return bool(of_others.rows) and bool(((row != of_others.rows[0]) == touched).all())


def _with_neighbours(subject: Subject, n: int) -> dict[Place, Tensor]:
    """Return the model's inputs, wherever they are used, with every second row replaced by the one behind it."""
    of_model = {storage_of(each.tensor) for each in subject.of_model}
    rows = torch.arange(n, device="cpu")
    rows[::2] += 1
    rows[rows == n] = n - 2
    return {
        each.place: each.tensor.index_select(0, rows.to(each.tensor.device))
        for each in subject.given
        if each.tensor.shape[:1] == (n,) and storage_of(each.tensor) in of_model
    }


def _has_moved(before: Ran, now: Ran, limit: float) -> bool:
    """Return whether a loss has moved, or their number."""
    if len(before.losses) != len(now.losses):
        return True
    return any(bool(((a - b).abs() > limit * b.abs()).any()) for a, b in zip(now.losses, before.losses, strict=True))
