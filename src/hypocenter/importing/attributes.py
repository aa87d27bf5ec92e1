"""Numbers that a program gave to its APIs, as attributes of the modules that called them: eps, p, dim.

A dump of APIs holds every argument. Those of a module that calls an API once are what the module was made with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from hypocenter.record.facts_file import Facts, ModuleFacts, TensorFacts

# Place of an argument: its name, of torch.nn.functional and torch; https://docs.pytorch.org/docs/stable/nn.functional.html
_PLACES: dict[str, dict[int, str]] = {
    "layer_norm": {1: "normalized_shape", 4: "eps"}, "rms_norm": {1: "normalized_shape", 3: "eps"},
    "group_norm": {1: "num_groups", 4: "eps"}, "batch_norm": {6: "momentum", 7: "eps"},
    "instance_norm": {6: "momentum", 7: "eps"}, "normalize": {1: "p", 2: "dim", 3: "eps"},
    "dropout": {1: "p"}, "softmax": {1: "dim"}, "log_softmax": {1: "dim"}, "leaky_relu": {1: "negative_slope"},
    "elu": {1: "alpha"}, "celu": {1: "alpha"}, "hardtanh": {1: "min_val", 2: "max_val"}, "threshold": {1: "threshold"},
    "scaled_dot_product_attention": {4: "dropout_p", 5: "is_causal"}, "embedding": {2: "padding_idx", 3: "max_norm"},
}  # fmt: skip
_LEFT_OUT = frozenset({"inplace", "training", "_stacklevel", "out", "requires_grad"})
_TEXT_AT_MOST = 60
_MOST = 200_000  # modules


class Attributes:
    """Gathers what a rank's first step tells of modules."""

    def __init__(self) -> None:
        self._kind: dict[str, str] = {}
        self._attributes: dict[str, dict[str, Any]] = {}
        self._calls: Counter[tuple[str, str]] = Counter()
        self._parameters: dict[str, dict[str, TensorFacts]] = {}

    def module(self, site: str, kind: str) -> None:
        """A module."""
        if len(self._kind) < _MOST:
            self._kind.setdefault(site, kind)

    def parameter(self, site: str, kind: str, name: str, shape: tuple[int, ...], dtype: str, *, trained: bool) -> None:
        """A parameter of a module."""
        self.module(site, kind)
        self._parameters.setdefault(site, {})[name] = TensorFacts(shape=shape, dtype=dtype, trained=trained)

    def call(self, site: str, api: str, args: Any, kwargs: Any) -> None:
        """An API that a module called. What two calls were given differently is no attribute."""
        if site not in self._attributes and len(self._attributes) >= _MOST:
            return
        found = self._attributes.setdefault(site, {})
        self._calls[site, api] += 1
        for name, value in _named(api, args, kwargs):
            if name in found and found[name] != value:
                found[name] = None
            else:
                found.setdefault(name, value)

    def facts(self) -> Facts:
        """All of it."""
        modules = [
            ModuleFacts(
                path=site, kind=kind, parameters=self._parameters.get(site, {}),
                attributes={n: v for n, v in self._attributes.get(site, {}).items() if v is not None},
            )
            for site, kind in self._kind.items()
        ]  # fmt: skip
        return Facts(modules=tuple(modules))


def _named(api: str, args: Any, kwargs: Any) -> list[tuple[str, Any]]:
    given: list[tuple[str, Any]] = []
    for place, name in _PLACES.get(api, {}).items():
        if isinstance(args, list) and place < len(args):
            given.append((name, args[place]))
    if isinstance(kwargs, Mapping):
        given += [(str(name), value) for name, value in kwargs.items()]
    found = ((name, _plain(value)) for name, value in given if name not in _LEFT_OUT)
    return [(name, value) for name, value in found if value is not None]


def _plain(leaf: Any) -> int | float | bool | str | None:
    value = leaf.get("value") if isinstance(leaf, Mapping) and "dtype" not in leaf else None
    if isinstance(value, str):
        return value[:_TEXT_AT_MOST]
    return value if isinstance(value, (bool, int, float)) and abs(value) < 1e300 else None
