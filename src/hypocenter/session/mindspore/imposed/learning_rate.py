"""`--impose-lr X`: every update is made with this learning rate; the schedule goes on as if nothing were.

A rate that is a Parameter (also one per group, and a table of rates by step) holds X while the optimizer works and its
own value again afterwards, in PyNative as in graphs, which read it where it lies. A rate that is a cell
(LearningRateSchedule) is replaced by one that gives X, before the optimizer is compiled: it computes from the number of
the step, which goes on. Weight decay that is decoupled is multiplied by the rate and so follows it. With rate 0 no
parameter changes; momenta do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
from mindspore import nn  # pyright: ignore[reportMissingImports]
from mindspore.nn.learning_rate_schedule import LearningRateSchedule  # pyright: ignore[reportMissingImports]

from hypocenter.session.imposed.refuse import ImposeError
from hypocenter.session.mindspore.imposed.tensors import put
from hypocenter.tap.mindspore.names import children, is_optimizer

OPTION = "--impose-lr"


class Constant(LearningRateSchedule):  # pyright: ignore[reportUntypedBaseClass]
    """A schedule that gives one rate at every step."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = ms.Tensor(rate, ms.float32)

    def construct(self, global_step: Any) -> Any:
        """Return the rate, whatever the step."""
        return self.rate * 1.0


class LearningRate:
    """Puts the rate in before an optimizer works (`enter`) and takes it out after it (`leave`); may be nested.

    Args:
        rate: to be imposed.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._depth = 0
        self._kept: list[tuple[Any, Any]] = []  # Parameter, its own value
        self._groups: list[tuple[dict[str, Any], Any]] = []  # groups with a rate that is a number
        self._replaced: set[int] = set()  # optimizers whose schedule is ours

    def enter(self, optimizer: Any) -> None:
        """Put the rate into an optimizer that is about to work.

        Raises:
            ImposeError: it has no rate that could be imposed.
        """
        self._depth += 1
        for each in _all(optimizer):
            rates = list(self._rates(each))
            if not rates and id(each) not in self._replaced:
                raise _without(each, "it has no learning rate")
            for parameter in rates:
                self._keep(parameter)

    def leave(self) -> None:
        """Put the program's own rates back: the optimizer has worked, or was skipped."""
        self._depth = max(0, self._depth - 1)
        if self._depth:
            return
        kept, self._kept = self._kept, []
        for parameter, own in kept:
            if (parameter.asnumpy() == ms.Tensor(self._rate, parameter.dtype).asnumpy()).all():  # else: set meanwhile
                put(parameter, own)
        groups, self._groups = self._groups, []
        for group, own in groups:
            group["lr"] = own

    def _keep(self, parameter: Any) -> None:
        if any(parameter is held for held, _ in self._kept):
            return
        self._kept.append((parameter, ms.Tensor(parameter.asnumpy().copy(), parameter.dtype)))
        put(parameter, ms.ops.full_like(parameter, self._rate))

    def _rates(self, optimizer: Any) -> Iterator[Any]:
        """Yield the Parameters that hold the optimizer's rates; rates of other kinds are replaced here."""
        groups = getattr(optimizer, "param_groups", None)
        if isinstance(groups, list):
            yield from self._of_groups(optimizer, groups)
            return
        if getattr(optimizer, "relative_step", False):
            raise _without(optimizer, "it computes its rate from the step (relative_step)")
        rate: Any = getattr(optimizer, "learning_rate", None)
        for each in rate if isinstance(rate, (tuple, list, nn.CellList)) else (rate,):
            table = each.learning_rate if type(each) is nn.optim.optimizer._IteratorLearningRate else each
            if isinstance(table, ms.Parameter):
                yield table
            elif isinstance(each, nn.Cell) and id(optimizer) not in self._replaced:
                self._replace(optimizer, rate)
                return

    def _of_groups(self, optimizer: Any, groups: list[Any]) -> Iterator[Any]:
        for group in groups:
            rate = group.get("lr")
            if isinstance(rate, ms.Parameter):
                yield rate
            elif isinstance(rate, (int, float)):
                if not any(group is held for held, _ in self._groups):
                    self._groups.append((group, rate))
                    group["lr"] = float(self._rate)
            else:
                raise _without(optimizer, f"a group's learning rate is a {type(rate).__name__}")
        yield from (each for each in getattr(optimizer, "lrs", ()) if isinstance(each, ms.Parameter))

    def _replace(self, optimizer: Any, rate: Any) -> None:
        if getattr(optimizer, "compile_cache", None):
            why = "its schedule is compiled already"
            raise _without(optimizer, why, "call hypocenter.watch before the first step, or use `hypocenter run`")
        constant = Constant(self._rate)
        cells = nn.CellList([Constant(self._rate) for _ in rate], auto_prefix=False) if _is_several(rate) else constant
        optimizer.learning_rate = cells
        self._replaced.add(id(optimizer))


def _is_several(rate: Any) -> bool:
    return isinstance(rate, (tuple, list, nn.CellList))


def _all(optimizer: Any) -> Iterator[Any]:
    """Yield the optimizer, or those that it wraps: LARS and gradient accumulation hold another one."""
    inner = [cell for cell in children(optimizer).values() if cell is not None and is_optimizer(cell)]
    if not inner:
        yield optimizer
    for each in inner:
        yield from _all(each)


def _without(optimizer: Any, why: str, fix: str = "") -> ImposeError:
    return ImposeError(
        f"no learning rate can be imposed on {type(optimizer).__name__}", where=OPTION, why=why,
        fix=fix or "use an optimizer with a learning rate, or leave the option out",
    )  # fmt: skip
