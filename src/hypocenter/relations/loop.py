"""Whether samples meet in the program's own loop: before the model, or between it and the loss.

Samples depend on each other there if an operation, element by element, lays the samples of one tensor along another
dimension of the other: noise levels of shape [B] times a batch of shape [B, B] run along the features, targets of shape
[B, 1] less values of shape [B] give each pair. It is asked of values, not of shapes alone: what the loop computed is
computed once more, with every second sample replaced by its neighbour, as relation *samples* does in the model.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from hypocenter.relations.earlier import Earlier
from hypocenter.relations.loop_again import Again
from hypocenter.relations.losses import Found
from hypocenter.relations.scores import Wrong
from hypocenter.replay.impossible import OutOfTime
from hypocenter.tap.loop_tape import LoopTape, Operation
from hypocenter.tap.source import source_of

CODE = "HC241"
LEAST = 4  # samples: of fewer some numbers go with them by chance
_BY_ELEMENT = frozenset({
    "add", "sub", "rsub", "mul", "div", "true_divide", "divide", "multiply", "subtract", "pow", "float_power", "where",
    "lerp", "addcmul", "addcdiv", "eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum", "max", "min", "fmax",
    "fmin", "remainder", "fmod", "atan2", "xlogy", "logaddexp", "logical_and", "logical_or", "logical_xor",
    "bitwise_and", "bitwise_or", "broadcast_tensors", "add_", "sub_", "mul_", "div_", "lerp_", "addcmul_", "addcdiv_",
    *(f"__{kind}{name}__" for name in ("add", "sub", "mul", "truediv", "pow", "and", "or") for kind in ("", "r", "i")),
    *(f"__{name}__" for name in ("eq", "ne", "lt", "le", "gt", "ge")),
})  # fmt: skip
"""What is computed element by element from several tensors that are broadcast together."""
_OF_ONE = frozenset({
    "neg", "abs", "square", "sqrt", "rsqrt", "exp", "expm1", "log", "log1p", "tanh", "sigmoid", "relu", "softplus",
    "log_sigmoid", "logsigmoid", "clamp", "clip", "clamp_min", "clamp_max", "reciprocal", "sign", "sin", "cos", "erf",
    "to", "float", "double", "half", "bfloat16", "type_as", "detach", "clone", "contiguous", "nan_to_num", "absolute",
    "__neg__", "__abs__", "__invert__", "logical_not", "silu", "gelu", "elu", "leaky_relu",
})  # fmt: skip
_AVERAGES = frozenset({"mean", "sum", "nanmean", "nansum"})
_LOSSES = frozenset({"huber_loss", "mse_loss", "l1_loss", "smooth_l1_loss"})
_SPREADS = frozenset({"__getitem__", "unsqueeze", "view", "reshape", "expand", "transpose", "permute"})
_TITLE = "samples of a batch meet in the loop, outside of the model"
_REMEDY = "give both as many dimensions: unsqueeze or reshape the smaller one, so that dimension 0 stays the samples"


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
    again: Again, earlier: Earlier, *, knows_pairs: bool = False, knows_model: bool = False
) -> list[Found]:  # fmt: skip
    """Return the first operation of the loop at which samples meet, if what it makes goes to the model or the loss.

    Args:
        again: what the loop computed, and how it is done again.
        earlier: what came into it at other looks.
        knows_pairs: that the loss compares each with all has been told already.
        knows_model: the model is known to keep its samples apart, by their first dimension.
    """
    tape = again.tape
    if tape.is_full or again.n < LEAST:
        return []
    suspects = {i: pair for i, each in enumerate(tape.operations) if (pair := meets(each, tape, again.n)) is not None}
    if not suspects or _may_be_second(tape):
        return []
    asked = _Asked(again, earlier, suspects.keys(), knows_pairs=knows_pairs, knows_model=knows_model)
    try:
        found = (asked.judge(position, low, high) for position, (low, high) in suspects.items())
        return next(([each] for each in found if each is not None), [])
    except OutOfTime:
        return []


class _Asked:
    """The questions about one tape."""

    def __init__(
        self, again: Again, earlier: Earlier, suspects: Collection[int], *, knows_pairs: bool, knows_model: bool
    ) -> None:
        self._again, self._tape, self._n, self._earlier, self._suspects = again, again.tape, again.n, earlier, suspects
        self._knows_pairs, self._knows_model = knows_pairs, knows_model
        self._readers: dict[int, list[int]] = {}
        for position, operation in enumerate(self._tape.operations):
            for number in set(operation.needs):
                self._readers.setdefault(number, []).append(position)
        of_model = [call for call in self._tape.calls if _is_model(call.module)]
        given = {number for call in of_model for number in call.given}
        self._given = {number for number in given if self._value(number).shape[:1] == (self._n,)}
        self._criteria = [call for call in self._tape.calls if not _is_model(call.module)]

    def _value(self, number: int) -> Tensor:
        return self._tape.values[number].tensor

    def judge(self, position: int, low: int, high: int) -> Found | None:
        """Return what is wrong with an operation that meets others by its shapes; None: nothing. Raises OutOfTime."""
        operation, again = self._tape.operations[position], self._again
        made, small, large = operation.makes[0], self._value(low), self._value(high)
        if large.shape[large.dim() - small.dim()] == 1:
            return self._judge_pairs(operation, low, high)
        if operation.name in _LOSSES or not (again.goes_along(low) and again.goes_along(high)):
            return None
        reached, is_of_loss = self._goes(operation.makes)
        is_given = any(again.has_moved(number) for number in reached & self._given)
        if not (is_given or is_of_loss) or not again.has_moved(made):
            return None
        if self._is_spread(high) or not self._is_of_samples(low, in_pairs=False):
            return None
        if not all(self._is_row_by_row(each) for each in self._sources_of(high)):
            return None
        how = f"the samples of the first run along dimension {large.dim() - small.dim()} of the other"
        where = "what the model is given" if is_given else "what the loss is taken of"
        return self._found(
            operation, small, large, f"{how}; with others in every second place, {where} for the rest moves"
        )

    def _judge_pairs(self, operation: Operation, low: int, high: int) -> Found | None:
        """Return what is wrong with one that makes a number for each pair of samples, of which a mean is taken."""
        again, is_loss = self._again, operation.name in _LOSSES
        reached, is_of_loss = self._goes(operation.makes)
        if self._knows_pairs or reached & self._given or not is_of_loss:
            return None
        if is_loss and self._value(operation.makes[0]).numel() != 1:
            return None
        if not is_loss and not (self._is_averaged(operation.makes) and again.has_moved(operation.makes[0])):
            return None
        if not (again.goes_along(low) and again.goes_along(high)) or not self._is_of_samples(low, in_pairs=True):
            return None
        small, large = self._value(low), self._value(high)
        if self._is_spread(high) or _are_same(small, large):
            return None
        how = f"each of the {self._n} meets all"
        return self._found(
            operation, small, large, f"{how}; with others in every second place, what the rest gives moves"
        )

    def _found(self, operation: Operation, small: Tensor, large: Tensor, how: str) -> Found:
        code = operation.code
        why = (
            f"{operation.name.strip('_')} of {[*small.shape]} and {[*large.shape]}, which hold a row for each of "
            f"{self._n} samples: {how}"
        )
        source = None if code is None else source_of(code.co_filename, operation.line, code.co_name)
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

    def _goes(self, numbers: Sequence[int]) -> tuple[set[int], bool]:
        """Return all that is made of these, and whether backward begins with it."""
        reached, roots = self._after(numbers), {*self._tape.roots}
        is_of_loss = bool(reached & roots)
        for call in self._criteria:
            is_of_loss = is_of_loss or bool(reached & {*call.given} and self._after(call.gives) & roots)
        return reached, is_of_loss

    def _is_averaged(self, numbers: Sequence[int]) -> bool:
        """Return whether all that is done to these pairs goes element by element, until one number is left.

        Who means pairs does more: a mask, a product of matrices, a softmax over the others.
        """
        own, waiting, seen = self._after(numbers), [*numbers], {*numbers}
        given = {number for call in self._criteria for number in call.given}
        while waiting:
            number = waiting.pop()
            if number in given:
                return False
            if self._value(number).numel() <= 1:
                continue
            for position in self._readers.get(number, ()):
                operation = self._tape.operations[position]
                others = [self._value(each) for each in operation.needs if each not in own]
                if operation.name in _AVERAGES:
                    is_known = all(self._value(each).numel() == 1 for each in operation.makes)
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
                was = self._value(each).shape
                is_added = len(was) < len(shape) and [d for d in was if d != 1] == [d for d in shape if d != 1]
                if is_added and operation.name in _SPREADS and each == operation.needs[0]:
                    return True
                if was == shape and each not in seen:
                    seen.add(each)
                    waiting.append(each)
        return False

    def _is_of_samples(self, number: int, *, in_pairs: bool) -> bool:
        """Return whether each number that this was made of is known to belong to a sample.

        A mask over features that is drawn in each step looks the same where there are as many features as samples.
        """
        sources = self._sources_of(number)
        return bool(sources) and all(self._is_known(each, in_pairs=in_pairs) for each in sources)

    def _sources_of(self, number: int) -> set[int]:
        needed, waiting = {number}, [number]
        while waiting:
            value = self._tape.values[waiting.pop()]
            if value.made_by >= 0 and value.kind == "made":
                new = {*self._tape.operations[value.made_by].needs} - needed
                needed |= new
                waiting += new
        return needed & self._again.sources

    def _is_other(self, source: int) -> bool:
        value = self._tape.values[source]
        return self._earlier.is_other(self._tape.operations[value.made_by], value.tensor)

    def _is_row_by_row(self, source: int) -> bool:
        """Return whether its rows were drawn, or taken from a data set, one for each sample: no table of all pairs."""
        kind = self._tape.values[source].kind
        return kind in ("outside", "drawn", "made") or (self._knows_model and kind in ("output", "entered"))

    def _is_known(self, source: int, *, in_pairs: bool) -> bool:
        value = self._tape.values[source]
        if value.kind == "outside" and (in_pairs or value.tensor.dim() > 1):
            return True  # rows that a loader has put together, one for each sample
        if value.kind in ("entered", "made") and in_pairs and self._is_other(source):
            return True  # numbers of this step: a constant would be the same each time
        for call in self._tape.calls:
            if source in call.gives:
                has_samples = any(self._value(each).shape[:1] == (self._n,) for each in call.given)
                return has_samples and _is_model(call.module) and (len(call.gives) == 1 or value.tensor.dim() > 1)
        reached, waiting = {source}, [source]
        while waiting:
            number = waiting.pop()
            if not self._again.goes_along(number):
                continue
            if number in self._given:
                return True
            for position in self._readers.get(number, ()):
                new = set[int]() if position in self._suspects else {*self._tape.operations[position].makes} - reached
                reached |= new
                waiting += new
        return False


def _may_be_second(tape: LoopTape) -> bool:
    """Return whether a part of a model is said to take its second dimension for the batch."""
    parts = (part for call in tape.calls for part in call.module.modules())
    return any(getattr(part, "batch_first", True) is False for part in parts)


def _is_model(module: torch.nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _are_same(small: Tensor, large: Tensor) -> bool:
    """Return whether both hold the same numbers: pairs of one thing are meant."""
    return small.numel() == large.numel() and bool(torch.equal(small.detach().flatten(), large.detach().flatten()))
