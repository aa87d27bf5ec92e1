"""The part of hypocenter.session.framework that holds where arrays are NumPy's, on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hypocenter.formats import FORMATS
from hypocenter.session.framework import GROUPS, SAMPLE, Then, spacing

Array = NDArray[Any]


class HostArrays:
    """Arrays on the host."""

    xp: Any = np

    def peek(self, parameters: Sequence[Any]) -> None:
        """What was launched may still run."""

    def is_tensor(self, value: object) -> bool:
        """Of the framework."""
        raise NotImplementedError

    def sample(self, tensor: Any, size: int = SAMPLE) -> Array | None:
        """Copied, where the framework may use the memory again."""
        raise NotImplementedError

    def copied(self, array: Array) -> Array:
        """A copy."""
        return array.copy()

    def kind(self, value: object) -> Any:
        """All tensors are on the host, or will be."""
        if self.is_tensor(value):
            return self.name_of(cast("Any", value).dtype)
        return float if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def gathered(
        self, columns: Sequence[Sequence[Any]], size: int, start: int = 0
    ) -> list[tuple[Array, Sequence[int]] | None]:
        """Always of the same elements."""
        return [self._gathered(values, size) for values in columns]

    def _gathered(self, values: Sequence[Any], size: int) -> tuple[Array, Sequence[int]] | None:
        kinds = set(map(self.kind, values))
        if len(kinds) > 1 or None in kinds:
            return None
        if float in kinds:
            return np.array(values, np.float64), [1] * len(values)
        found = [self.sample(tensor, size) for tensor in values]
        parts = [np.empty(0) if each is None else each.reshape(-1) for each in found]
        return np.concatenate(parts), [each.size for each in parts]

    def all_same(self, pairs: Sequence[tuple[Array, Array]]) -> bool:
        """One after the other."""
        return all(np.array_equal(one, other) for one, other in pairs)

    def n_changed(self, trios: Sequence[tuple[Any, Any, float]]) -> list[tuple[int, int]]:
        """One after the other."""
        return [_n_changed(*trio) for trio in trios]

    def versions(self, tensors: Sequence[Any]) -> list[int]:
        """None are kept."""
        return []

    def settings(self, optimizer: Any) -> list[dict[str, float]]:
        """Numbers of its groups."""
        return [
            {name: value for name, value in group.items() if type(value) in (int, float)}
            for group in optimizer.param_groups[:GROUPS]
        ]

    def named(self, model: Any) -> tuple[str, Mapping[str, Any]]:
        """Where no model is made anew in a run, nobody asks for them."""
        return type(model).__name__, {}

    def owner(self, roots: Sequence[Any], parameter: Any) -> Any | None:
        """Where calls of modules are not told of, nobody asks whose they are."""
        return None

    def said_to_be_tied(self, model: Any) -> list[tuple[Any, Any]]:
        """Return nothing: no model of these is known to say it."""
        return []

    def flags(self, model: Any) -> Mapping[str, bool]:
        """Its attributes are not known."""
        return {}

    def times_nothing(self, roots: Sequence[Any], parameters: Sequence[Any]) -> list[Any]:
        """Return none: nobody sees the graph."""
        return []

    def is_merged(self, roots: Sequence[Any], parameter: Any) -> bool:
        """No adapter is known."""
        return False

    def has_copies(self, parameters: Sequence[Any]) -> bool:
        """No optimizer has."""
        return False

    def wide(self, array: Array) -> Array:
        """In float64."""
        return np.asarray(array, np.float64)

    def is_on_host(self, tensor: Any) -> bool:
        """What was launched may still run, also on a CPU."""
        return False

    def are_same(self, one: Array, other: Array) -> bool:
        """Of NumPy."""
        return np.array_equal(one, other)

    def on_host(self, array: Array) -> Array:
        """It is there."""
        return np.asarray(array, np.float64)

    def ulp(self, values: Array, dtype: Any) -> Array:
        """By FORMATS."""
        return spacing(np, values, FORMATS[self.name_of(dtype)])

    def name_of(self, dtype: Any) -> str:
        """Without a framework's name in front."""
        return str(dtype).lower().rpartition(".")[2]

    def number(self, value: Any) -> float | None:
        """There is nothing to wait for."""
        return None if value is None else float(value)

    def deferred(self) -> AtOnce:
        """Numbers are on the host already."""
        return AtOnce()


class AtOnce:
    """Hands numbers on at once: they wait for nobody."""

    def add(self, numbers: Array, then: Then) -> None:
        """Call `then`."""
        then(numbers.tolist())

    def read(self) -> None:
        """Nothing waits."""


def strided(array: Array, size: int = SAMPLE) -> Array:
    """At most `size` elements at an equal stride, flat; a view where the array is contiguous."""
    return array.reshape(-1)[:: -(-array.size // size)]


def _n_changed(before: Any, now: Any, slack: float) -> tuple[int, int]:
    if now is None:
        return 0, 1
    a, b = np.asarray(before), np.asarray(now)
    if a.shape != b.shape:
        return b.size, b.size
    if a.dtype.kind != "f" or b.dtype.kind != "f":
        return b.size, int(np.count_nonzero(a != b))
    with np.errstate(all="ignore"):
        largest = np.abs(a[np.isfinite(a)]).max(initial=0.0)
        is_near = (np.abs(a - b) <= slack * largest) | (a == b) | ((a != a) & (b != b))
    return b.size, int(np.count_nonzero(~is_near))
