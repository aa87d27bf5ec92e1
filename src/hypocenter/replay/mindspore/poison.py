"""Fresh memory of MindSpore filled with NaN while a micro-batch is done again: see hypocenter.tap.unwritten.

The dispatch mode does not show all that makes it, so the makers are replaced meanwhile. On a CPU
alone: a NaN that becomes an index may end the process of another device.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Generator
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np
from mindspore.ops import functional_overload  # pyright: ignore[reportMissingImports]
from mindspore.utils import MsDispatchMode  # pyright: ignore[reportMissingImports]

from hypocenter.replay.mindspore.host import flat, is_floating, values
from hypocenter.replay.mindspore.places import Places
from hypocenter.replay.mindspore.trace import VIEWS
from hypocenter.replay.place import Place
from hypocenter.tap.patches import Patches
from hypocenter.tap.unwritten import UnwrittenRead

HELD_BYTES = 256 << 20  # of fresh memory is held until the end; what comes after so much is left as it is
_MAKERS = (
    ("empty", functional_overload, "_empty_instance"),  # which functions of `mint` call
    ("empty_like", functional_overload, "_empty_like_instance"),
    ("new_empty", ms.Tensor, "new_empty"),
)
_WRITES = frozenset({"Assign", "CopyTo", "TensorScatterUpdate", "SliceScatter", "SelectScatter", "ScatterNdUpdate"})


@contextlib.contextmanager
def fresh_memory(hand_out: Callable[[str, Any], Any]) -> Generator[None, None, None]:
    """Within this block have `hand_out`, of what made fresh memory and the tensor, say what the program is given."""
    patches = Patches()
    for maker, owner, name in _MAKERS:
        if hasattr(owner, name):
            patches.wrap(owner, name, functools.partial(_making, maker, hand_out))
    try:
        yield
    finally:
        patches.undo()


def _making(maker: str, hand_out: Callable[[str, Any], Any], original: Callable[..., Any]) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        return hand_out(maker, original(*args, **kwargs))

    return make


class IndexUnwritten(Exception):
    """NaN was about to become a whole number, which the program may use as an index."""


class Poison(MsDispatchMode):  # pyright: ignore[reportUntypedBaseClass]
    """Fills fresh floating-point memory, and finds who reads it unwritten. Entered around a replay.

    Args:
        places: where operators run.
        is_chosen: told of each fresh tensor's number, in order from 0: whether it is filled. Others are made zero.

    Attributes:
        n_fresh: how many fresh tensors there were.
        read: the first operator whose output holds NaN, but for those that write or give views.
    """

    def __init__(self, places: Places, is_chosen: Callable[[int], bool]) -> None:
        super().__init__()
        self._places, self._is_chosen = places, is_chosen
        self._made: list[tuple[str, Place, Any]] = []
        self._n_bytes = 0
        self._stack = contextlib.ExitStack()
        self.n_fresh = 0
        self.read: UnwrittenRead | None = None

    def __enter__(self) -> Poison:
        """Replace what makes fresh memory."""
        self._stack.enter_context(fresh_memory(self._fresh))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """Put it back."""
        super().__exit__(*error)
        self._stack.close()

    @property
    def handed_on(self) -> UnwrittenRead | None:
        """Return the first tensor that was filled, for what no operator has read, as it is a result itself."""
        made = next(iter(self._made), None)
        return None if made is None else UnwrittenRead(op=made[0], place=made[1], maker=made[0], made_at=made[1])

    def clean(self) -> None:
        """Leave none of our NaN in memory that the program may get next."""
        for _, _, tensor in self._made:
            array = values(tensor)
            tensor.copy_(ms.Tensor(np.nan_to_num(array, nan=0.0), tensor.dtype))
        self._made.clear()

    def _fresh(self, maker: str, made: Any) -> Any:
        """Return what is handed out in the place of fresh memory."""
        if not isinstance(made, ms.Tensor) or not made.size or not is_floating(made):
            return made
        self.n_fresh += 1
        self._n_bytes += int(made.nbytes)
        is_filled = self._is_chosen(self.n_fresh - 1) and self._n_bytes <= HELD_BYTES
        filled = ms.Tensor(np.full(made.shape, math.nan if is_filled else 0.0, np.float32), made.dtype)
        if is_filled:
            self._made.append((maker, self._places.here(), filled))
        return filled

    def __ms_dispatch__(self, func: Any, args: Any, kwargs: Any = None) -> Any:
        """Run an operator in its place, and look whether it has read what nobody has written."""
        out = func(*args)
        name = str(func.name)
        if self._made and self.read is None and name not in VIEWS | _WRITES and not name.startswith("Inplace"):
            if any(is_floating(t) and np.isnan(values(t)).any() for t in flat(out)):
                self._note(name)
            elif name.startswith("Cast") and any(is_floating(t) and np.isnan(values(t)).any() for t in flat(args)):
                self._note(name)
                raise IndexUnwritten
        return out

    def _note(self, name: str) -> None:
        maker, made_at, _ = self._made[0]
        self.read = UnwrittenRead(op=name, place=self._places.here(), maker=maker, made_at=made_at)
