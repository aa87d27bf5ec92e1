"""Whether samples meet in the program's own loop: before the model, or between it and the loss.

Samples depend on each other there if an operation, element by element, lays the samples of one tensor along another
dimension of the other: noise levels of shape [B] times a batch of shape [B, B] run along the features, targets of shape
[B, 1] less values of shape [B] give each pair. It is asked of values, not of shapes alone: what the loop computed is
computed once more, with every second sample replaced by its neighbour, as relation *samples* does in the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hypocenter import own_time
from hypocenter.nouns import Source
from hypocenter.relations.losses import Found
from hypocenter.relations.scores import Wrong
from hypocenter.tap.loop_tape import LoopTape, Operation, Slot
from hypocenter.tap.source import source_of

CODE = "HC241"
LEAST = 4  # samples: of fewer some numbers go with them by chance
_MOST_LINES, _MOST_NUMBERS = 64, 4096  # of earlier steps: lines, and numbers of each
_ROUNDING = 1e-5  # relative: the same function at another place of an array
_BY_ELEMENT = frozenset({
    "add", "sub", "rsub", "mul", "div", "true_divide", "divide", "multiply", "subtract", "pow", "float_power", "where",
    "lerp", "addcmul", "addcdiv", "eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum", "max", "min", "fmax",
    "fmin", "remainder", "fmod", "atan2", "xlogy", "logaddexp", "logical_and", "logical_or", "logical_xor",
    "bitwise_and", "bitwise_or", "broadcast_tensors", "add_", "sub_", "mul_", "div_", "lerp_", "addcmul_", "addcdiv_",
    *(f"__{prefix}{name}__" for name in ("add", "sub", "mul", "truediv", "pow", "and", "or") for prefix in ("", "r", "i")),
    *(f"__{name}__" for name in ("eq", "ne", "lt", "le", "gt", "ge")),
})  # fmt: skip
"""What is computed element by element from several tensors that are broadcast together."""
_OF_ONE = frozenset({
    "neg", "abs", "square", "sqrt", "rsqrt", "exp", "expm1", "log", "log1p", "tanh", "sigmoid", "relu", "softplus",
    "log_sigmoid", "logsigmoid", "clamp", "clip", "clamp_min", "clamp_max", "reciprocal", "sign", "sin", "cos", "erf", "to",
    "float", "double", "half", "bfloat16", "type_as", "detach", "clone", "contiguous", "nan_to_num", "absolute",
    "__neg__", "__abs__", "__invert__", "logical_not", "silu", "gelu", "elu", "leaky_relu",
})  # fmt: skip
_AVERAGES = frozenset({"mean", "sum", "nanmean", "nansum"})
_LOSSES = frozenset({"huber_loss", "mse_loss", "l1_loss", "smooth_l1_loss"})
_CUTS = frozenset({
    "__getitem__", "index_select", "narrow", "stack", "cat", "split", "chunk", "unbind", "take_along_dim",
})  # fmt: skip
_SPREADS = frozenset({"__getitem__", "unsqueeze", "view", "reshape", "expand", "transpose", "permute"})
_TITLE = "samples of a batch meet in the loop, outside of the model"
_REMEDY = "give both as many dimensions: unsqueeze or reshape the smaller one, so that dimension 0 stays the samples"


class Earlier:
    """Numbers that came into the loop at earlier looks, by the line: what is the same each time is a constant."""

    def __init__(self) -> None:
        self._seen: dict[tuple[Any, int], Tensor] = {}

    def remember(self, tape: LoopTape) -> None:
        """Keep copies of the small ones, of a bounded number of lines."""
        for operation in tape.operations:
            value = tape.values[operation.makes[0]]
            is_of_interest = value.kind == "entered" or operation.name in _CUTS
            key = operation.code, operation.line
            if is_of_interest and value.tensor.numel() <= _MOST_NUMBERS and value.is_there:
                if key in self._seen or len(self._seen) < _MOST_LINES:
                    self._seen[key] = value.tensor.detach().clone()

    def is_other(self, operation: Operation, tensor: Tensor) -> bool:
        """Return whether this line gave other numbers before."""
        was = self._seen.get((operation.code, operation.line))
        return was is not None and was.dim() == tensor.dim() and not _equal(was, tensor.detach())


class _CannotTell(Exception):
    """It may be meant, or there was no time."""


def meets(operation: Operation, tape: LoopTape, n: int) -> tuple[int, int] | None:
    """Return the numbers of two operands of which one has its samples laid along a later dimension; else None.

    By shapes alone: [n], with or without more, against a tensor of samples that has more dimensions.

    Returns:
        the one that is laid out otherwise, and the other.
    """
    if operation.name not in _BY_ELEMENT and operation.name not in _LOSSES:
        return None
    operands = [number for number in operation.needs if tape.values[number].tensor.dim()]
    for low in operands:
        small = tape.values[low].tensor
        for high in operands if small.shape[0] == n else ():
            large = tape.values[high].tensor
            if large.dim() > small.dim() and large.shape[0] == n and large.shape[large.dim() - small.dim()] in (1, n):
                return low, high
    return None


def look_at_loop(
    tape: LoopTape, n: int, *, is_loaded: Callable[[Tensor], bool], earlier: Earlier | None = None,
    until: float = math.inf, knows_pairs: bool = False, knows_model: bool = False,
) -> list[Found]:  # fmt: skip
    """Return the first operation of the loop at which samples meet, if what it makes goes to the model or the loss.

    Args:
        n: samples of the micro-batch.
        is_loaded: whether a loader has made this tensor of so many samples of its data set.
        earlier: what was seen of the loop before.
        until: by the clock of our own work.
        knows_pairs: that the loss compares each with all has been told already.
        knows_model: the model is known to keep its samples apart, by their first dimension.
    """
    if tape.is_full or n < LEAST:
        return []
    suspects = {i: pair for i, each in enumerate(tape.operations) if (pair := meets(each, tape, n)) is not None}
    if not suspects or _may_be_second(tape):
        return []
    asked = _Asked(tape, n, is_loaded, earlier or Earlier(), until, knows_model=knows_model)
    for position, (low, high) in suspects.items():
        try:
            found = asked.judge(position, low, high, suspects.keys(), knows_pairs=knows_pairs)
        except _CannotTell:
            continue
        if found is not None:
            return [found]
    return []


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


class _Asked:
    """The questions about one tape."""

    def __init__(
        self, tape: LoopTape, n: int, is_loaded: Callable[[Tensor], bool], earlier: Earlier, until: float, *,
        knows_model: bool,
    ) -> None:  # fmt: skip
        self._tape, self._n, self._is_loaded, self._until = tape, n, is_loaded, until
        self._earlier, self._knows_model = earlier, knows_model
        self._readers: dict[int, list[int]] = {}
        for position, operation in enumerate(tape.operations):
            for number in set(operation.needs):
                self._readers.setdefault(number, []).append(position)
        self._given = {
            number for call in tape.calls if _is_model(call.module) for number in call.given
            if tape.values[number].tensor.shape[:1] == (n,)
        }  # fmt: skip
        self._given_to_loss = {
            number for call in tape.calls if not _is_model(call.module) for number in call.given
        }  # fmt: skip
        self._sources: set[int] = set()
        self._trials: list[_Trial] | None = None

    def judge(
        self, position: int, low: int, high: int, suspects: Collection[int], *, knows_pairs: bool
    ) -> Found | None:  # fmt: skip
        """Return what is wrong with an operation; None: nothing."""
        tape = self._tape
        operation = tape.operations[position]
        small, large = tape.values[low].tensor, tape.values[high].tensor
        result = tape.values[operation.makes[0]].tensor
        is_loss = operation.name in _LOSSES
        makes_pairs = large.shape[large.dim() - small.dim()] == 1
        goes_to_model, goes_to_loss = self._goes(operation.makes)
        if not (goes_to_model or goes_to_loss) or (is_loss and not makes_pairs):
            return None
        if makes_pairs and (knows_pairs or goes_to_model or not goes_to_loss):
            return None
        trials = self._tried()
        for trial in trials:
            if not (self._goes_along(low, trial) and self._goes_along(high, trial)):
                return None
            if operation.makes[0] in trial.dead or not (is_loss or self._has_moved(operation.makes[0], trial)):
                return None
        if self._is_spread(high) or _are_same(small, large) or (is_loss and result.numel() != 1):
            return None
        if not self._is_of_samples(low, trials, suspects, in_pairs=makes_pairs):
            return None
        if makes_pairs and not is_loss and not self._is_averaged(operation.makes):
            return None
        if not makes_pairs and not all(self._is_row_by_row(each) for each in self._sources_of(high)):
            return None
        return self._found(operation, small, large, makes_pairs=makes_pairs, goes_to_model=goes_to_model)

    def _found(
        self, operation: Operation, small: Tensor, large: Tensor, *, makes_pairs: bool, goes_to_model: bool
    ) -> Found:  # fmt: skip
        code = operation.code
        source: Source | None = None
        if code is not None:
            source = source_of(code.co_filename, operation.line, code.co_name)
        where = "what is given to the model" if goes_to_model else "what the loss is taken of"
        how = (
            f"each of {self._n} samples meets all others"
            if makes_pairs
            else f"the samples of the first run along dimension {large.dim() - small.dim()} of the other"
        )
        why = (
            f"{operation.name.strip('_')} of {[*small.shape]} and {[*large.shape]}, which hold a row for each of "
            f"{self._n} samples: {how}; with other samples in every second place, {where} for those that stayed is "
            "another"
        )  # fmt: skip
        return Found(code=CODE, wrong=Wrong(title=_TITLE, why=why, remedy=_REMEDY), source=source)

    # where it goes

    def _after(self, numbers: Sequence[int]) -> set[int]:
        """Return all that is made of these, with themselves."""
        reached, waiting = set(numbers), [*numbers]
        while waiting:
            for position in self._readers.get(waiting.pop(), ()):
                new = set(self._tape.operations[position].makes) - reached
                reached |= new
                waiting += new
        return reached

    def _goes(self, numbers: Sequence[int]) -> tuple[bool, bool]:
        """Return whether what is made of these is given to a model, and whether backward begins with it."""
        reached, roots = self._after(numbers), set(self._tape.roots)
        for call in self._tape.calls:
            if not _is_model(call.module) and reached & {*call.given} and self._after(call.gives) & roots:
                return bool(reached & self._given), True
        return bool(reached & self._given), bool(reached & roots)

    def _is_averaged(self, numbers: Sequence[int]) -> bool:
        """Return whether all that is done to these pairs goes element by element, until one number is left.

        Who means pairs does more: a mask, a product of matrices, a softmax over the others.
        """
        own, waiting = self._after(numbers), [*numbers]
        seen = set(waiting)
        while waiting:
            number = waiting.pop()
            if number in self._given_to_loss:
                return False
            if self._tape.values[number].tensor.numel() <= 1:
                continue
            for position in self._readers.get(number, ()):
                operation = self._tape.operations[position]
                others = [self._tape.values[each].tensor for each in operation.needs if each not in own]
                if operation.name in _AVERAGES:
                    is_known = all(self._tape.values[each].tensor.numel() == 1 for each in operation.makes)
                elif operation.name in _LOSSES:
                    is_known = True
                else:
                    is_known = operation.name in _BY_ELEMENT or operation.name in _OF_ONE
                if not is_known or any(each.numel() > self._n for each in others):
                    return False
                waiting += [each for each in operation.makes if each not in seen]
                seen.update(operation.makes)
        return True

    # where it comes from

    def _is_spread(self, number: int) -> bool:
        """Return whether the program itself has added a dimension of one place to it, or to what it is made of.

        Who writes `a[:, None] - b` means pairs. Who takes a column, or what a layer gives, has the dimension as it is.
        """
        waiting, seen = [number], {number}
        while waiting:
            value = self._tape.values[number := waiting.pop()]
            if value.kind != "made" or value.made_by < 0:
                continue
            operation = self._tape.operations[value.made_by]
            shape = value.tensor.shape
            for each in operation.needs:
                was = self._tape.values[each].tensor.shape
                is_added = len(was) < len(shape) and [d for d in was if d != 1] == [d for d in shape if d != 1]
                if is_added and operation.name in _SPREADS and each == operation.needs[0]:
                    return True
                if was == shape and each not in seen:
                    seen.add(each)
                    waiting.append(each)
        return False

    def _is_of_samples(self, number: int, trials: Sequence[_Trial], suspects: Collection[int], *, in_pairs: bool) -> bool:
        """Return whether each number that this was made of is known to belong to a sample.

        A mask over features that is drawn in each step looks the same where there are as many features as samples.
        """
        sources = self._sources_of(number)
        return bool(sources) and all(self._is_known(each, trials, suspects, in_pairs=in_pairs) for each in sources)

    def _sources_of(self, number: int) -> set[int]:
        needed, waiting = {number}, [number]
        while waiting:
            value = self._tape.values[waiting.pop()]
            if value.made_by >= 0 and value.kind == "made":
                new = {*self._tape.operations[value.made_by].needs} - needed
                needed |= new
                waiting += new
        return needed & self._sources

    def _is_other(self, source: int) -> bool:
        value = self._tape.values[source]
        return self._earlier.is_other(self._tape.operations[value.made_by], value.tensor)

    def _is_row_by_row(self, source: int) -> bool:
        """Return whether its rows were drawn, or taken from a data set, one for each sample: no table of all pairs."""
        kind = self._tape.values[source].kind
        return kind in ("outside", "drawn", "made") or (self._knows_model and kind in ("output", "entered"))

    def _is_known(self, source: int, trials: Sequence[_Trial], suspects: Collection[int], *, in_pairs: bool) -> bool:
        value = self._tape.values[source]
        if value.kind == "outside" and (in_pairs or value.tensor.dim() > 1):
            return True  # rows that a loader has put together, one for each sample
        if value.kind in ("entered", "made") and in_pairs and self._is_other(source):
            return True  # numbers of this step: a constant would be the same each time
        for call in self._tape.calls:
            if source in call.gives:
                has_samples = any(self._tape.values[each].tensor.shape[:1] == (self._n,) for each in call.given)
                return has_samples and _is_model(call.module) and (len(call.gives) == 1 or value.tensor.dim() > 1)
        reached, waiting = {source}, [source]
        while waiting:
            number = waiting.pop()
            if not all(self._goes_along(number, trial) for trial in trials):
                continue
            if number in self._given:
                return True
            for position in self._readers.get(number, ()):
                new = set[int]() if position in suspects else {*self._tape.operations[position].makes} - reached
                reached |= new
                waiting += new
        return False

    # with other samples

    def _tried(self) -> list[_Trial]:
        if self._trials is None:
            trials: list[_Trial] = []
            for first in (0, 1):
                rows = torch.arange(self._n, device="cpu")
                rows[first::2] += 1 if first == 0 else -1
                rows[rows >= self._n] = self._n - 2
                trials.append(self._with(rows))
            self._trials = trials
        return self._trials

    def _with(self, rows: Tensor) -> _Trial:
        """Compute the step's operations again with these samples."""
        tape, trial = self._tape, _Trial(rows)
        for number, value in enumerate(tape.values):
            if value.made_by < 0 or value.kind != "made":
                self._begin(number, trial)
            elif number == tape.operations[value.made_by].makes[0]:
                if own_time.now() > self._until:
                    raise _CannotTell("there was no time for it")
                self._do(tape.operations[value.made_by], trial)
        return trial

    def _begin(self, number: int, trial: _Trial) -> None:
        """Put other samples into a tensor that no operation has made, if it has a row for each."""
        value = self._tape.values[number]
        if value.kind == "unknown" or not value.is_there:
            trial.dead.add(number)
            return
        tensor = value.tensor
        if value.kind == "outside" and not (tensor.dim() and self._is_loaded(tensor)):
            return  # a table, a constant, a weight
        self._replace(number, trial)

    def _replace(self, number: int, trial: _Trial) -> None:
        tensor = self._tape.values[number].tensor.detach()
        if tensor.dim() and tensor.shape[0] == self._n and tensor.layout == torch.strided:
            new = tensor.index_select(0, trial.rows.to(tensor.device))
            self._sources.add(number)
            if not torch.equal(new, tensor):
                trial.changed[number] = new

    def _do(self, operation: Operation, trial: _Trial) -> None:
        tape = self._tape
        if any(number in trial.dead for number in operation.needs) or not all(
            tape.values[number].is_there for number in (*operation.needs, *operation.makes)
        ):
            trial.dead.update(operation.makes)
            return
        if not any(number in trial.changed for number in operation.needs):
            if operation.name in _CUTS and self._is_cut(operation):
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
            if not _equal(was, same) or new.shape != was.shape:
                trial.dead.add(number)
            elif not _equal(was, new):
                trial.changed[number] = new

    def _is_cut(self, operation: Operation) -> bool:
        """Return whether rows of something larger, or single samples, are put together to a batch."""
        made = self._tape.values[operation.makes[0]].tensor
        if made.shape[:1] != (self._n,) or not operation.needs:
            return False
        return operation.name in ("stack", "cat") or self._tape.values[operation.needs[0]].tensor.numel() > made.numel()

    def _goes_along(self, number: int, trial: _Trial) -> bool:
        """Return whether a value has changed just as its samples have: row by row."""
        tensor = self._tape.values[number].tensor.detach()
        new = trial.changed.get(number)
        if new is None or number in trial.dead or tensor.shape[:1] != (self._n,):
            return False
        return _close(tensor.index_select(0, trial.rows.to(tensor.device)), new)

    def _has_moved(self, number: int, trial: _Trial) -> bool:
        """Return whether rows of samples that were not touched are others."""
        new, tensor = trial.changed.get(number), self._tape.values[number].tensor.detach()
        if new is None or tensor.shape[:1] != (self._n,):
            return False
        stays = (trial.rows == torch.arange(self._n, device="cpu")).nonzero().flatten().to(tensor.device)
        return not _close(tensor.index_select(0, stays), new.index_select(0, stays))


def _may_be_second(tape: LoopTape) -> bool:
    """Return whether a part of a model is said to take its second dimension for the batch."""
    parts = (part for call in tape.calls for part in call.module.modules())
    return any(getattr(part, "batch_first", True) is False for part in parts)


def _is_model(module: torch.nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _are_same(small: Tensor, large: Tensor) -> bool:
    """Return whether both hold the same numbers: pairs of one thing are meant."""
    return small.numel() == large.numel() and bool(torch.equal(small.detach().flatten(), large.detach().flatten()))


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


def _equal(a: Tensor, b: Tensor) -> bool:
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
