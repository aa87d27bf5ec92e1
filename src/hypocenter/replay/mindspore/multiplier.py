"""What a loss of MindSpore's was multiplied by on its way out of the function that is differentiated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
from mindspore.utils import MsDispatchMode  # pyright: ignore[reportMissingImports]

from hypocenter.replay.mindspore.engine import Replayer
from hypocenter.replay.mindspore.host import address, flat
from hypocenter.tap.mindspore.tape import GradCall

MOST = 1 << 16  # operators with one number as their result that are kept
_SAME = ("cast", "reshape", "add", "sub", "neg", "copy", "contiguous", "view", "squeeze", "stopgradient")


def multiplier(replayer: Replayer, call: GradCall, *, must_leave_no_trace: bool = False) -> float | None:
    """Return the largest product of numbers on one way from the loss into what backward starts from; 1.0 for none.

    None when it cannot be told.

    Args:
        must_leave_no_trace: see `Replayer.run`.

    Raises:
        ReplayImpossible: with the reason.
    """
    products = _Products()
    replayed = replayer.run(call, around=products, eager=True, must_leave_no_trace=must_leave_no_trace)
    if products.is_full or len(replayed.values) != 1 or replayed.values[0].size != 1:
        return None
    return products.into(address(replayed.values[0]), frozenset(map(address, call.weights)))


class _Products(MsDispatchMode):  # pyright: ignore[reportUntypedBaseClass]
    """Note the operators whose result is one number."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, tuple[str, list[Any], Any]] = {}  # address -> operator, operands, the result itself
        self.is_full = False

    def __ms_dispatch__(self, func: Any, args: Any, kwargs: Any = None) -> Any:
        """Run an operator in its place, and note it if its result is one number."""
        out = func(*args)
        tensor: Any = next(iter(flat(out)), None)
        self.is_full = self.is_full or len(self._made) >= MOST
        if isinstance(tensor, ms.Tensor) and tensor.size == 1 and not self.is_full:
            self._made.setdefault(address(tensor), (str(func.name).lower(), list(_operands(args)), tensor))
        return out

    def into(self, at: int, learned: frozenset[int]) -> float | None:
        """Return the largest product of numbers, as `multiplier` does.

        Args:
            at: address of what backward starts from.
            learned: addresses of parameters, which are no numbers of the program's.
        """
        best, ways = 0.0, [(at, 1.0)]
        for _ in range(MOST):
            if not ways:
                return best or None
            at, factor = ways.pop()
            name, operands, _result = self._made.get(at, ("", [], None))
            made = [address(each) for each in operands if isinstance(each, ms.Tensor)]
            made = [each for each in made if each in self._made and each != at]
            is_product, is_quotient = name.startswith("mul"), name.startswith(("div", "realdiv"))
            if not made or not (is_product or is_quotient or name.startswith(_SAME)):
                best = max(best, factor)
                continue
            if (is_product or is_quotient) and len(made) == 1 and len(operands) == 2:
                number = next((n for each in operands if (n := self._number(each, learned)) is not None), None)
                if number:
                    factor *= number if is_product else 1.0 / number
            ways += [(each, abs(factor)) for each in made]
        return None

    def _number(self, value: Any, learned: frozenset[int]) -> float | None:
        """Return a number that the program wrote, or that a tensor from before holds; None for anything else."""
        if not isinstance(value, ms.Tensor):
            return float(value)
        if value.size != 1 or address(value) in self._made or address(value) in learned:
            return None
        return float(value.asnumpy().reshape(-1)[0])


def _operands(args: Any) -> Iterator[Any]:
    for each in args if isinstance(args, (tuple, list)) else [args]:
        if isinstance(each, (tuple, list)):
            yield from _operands(each)
        elif isinstance(each, (int, float, ms.Tensor)) and not isinstance(each, bool):
            yield each
