"""Values of MindSpore followed from parameters to the loss while a micro-batch is done again: see hypocenter.tap.paths.

Operators get other Python objects than the program has, so a tensor is known by its address, and by whether it carries
gradient: what `stop_gradient` returns may lie where its argument does. Every result is kept alive meanwhile, so that no
address comes twice. Views are no operations of their own; operators get a contiguous copy of one, and autograd tells
of which, or its content does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Sequence
from typing import Any

from mindspore.common.api import _pynative_executor  # pyright: ignore[reportMissingImports]
from mindspore.utils import MsDispatchMode  # pyright: ignore[reportMissingImports]

from hypocenter.replay.host_values import same_values
from hypocenter.replay.mindspore.arguments import operands_of
from hypocenter.replay.mindspore.host import address, flat, is_floating, values
from hypocenter.replay.mindspore.places import Places
from hypocenter.replay.mindspore.trace import VIEWS
from hypocenter.tap.mindspore.autograd import behind, has_gradient, made_by
from hypocenter.tap.paths import Node, Paths, Source, paths_back

ALIVE_BYTES = 1 << 30  # of results; where there are more nothing is told
_STOPS = frozenset({"StopGradient", "Detach"})

_is_recording = getattr(_pynative_executor, "requires_grad", lambda: True)


class Flow(MsDispatchMode):  # pyright: ignore[reportUntypedBaseClass]
    """Follows values through a forward. Entered inside of other dispatch modes.

    Args:
        parameters: that are trained.
        places: where operators run.

    Attributes:
        is_lost: nothing can be told.
    """

    def __init__(self, parameters: Iterable[Any], places: Places) -> None:
        super().__init__()
        self._numbers = {address(p): number for number, p in enumerate(parameters)}
        self._places = places
        self._made: dict[tuple[int, bool], Source] = {}  # by address and whether gradient comes back to it
        self._by_number: dict[int, Source] = {}  # that autograd has for the operator
        self._views: list[tuple[Any, Source]] = []
        self._alive: list[Any] = []
        self._n_bytes = 0
        self.is_lost = False
        self._is_over = False
        self._ends: list[Source] = []

    def forward_over(self, roots: Sequence[Any]) -> None:
        """Note the loss; what backward does is not followed."""
        self._is_over = True
        with self._careful():
            found = [self._source(root) for root in roots if has_gradient(root)]
            self._ends = [each for each in found if each is not None]

    def paths(self) -> Paths | None:
        """Return what came to the loss; None where nothing is known of it."""
        return None if self.is_lost else paths_back(self._ends)

    def __ms_dispatch__(self, func: Any, args: Any, kwargs: Any = None) -> Any:
        """Run an operator in its place, and note what came into it."""
        if self._is_over or self.is_lost:
            return func(*args)
        given = self._given(args)
        out = func(*args)
        if given:
            with self._careful():
                self._note(str(func.name), given, [t for t in flat(out) if is_floating(t)])
        return out

    @contextlib.contextmanager
    def _careful(self) -> Generator[None, None, None]:
        """Follow nothing any more once a tensor was too odd for us: the program's forward goes on."""
        try:
            yield
        except Exception:
            self.is_lost = True

    def _given(self, args: Any) -> list[tuple[Source, bool]]:
        with self._careful():
            read = [t for t in flat(operands_of(args)) if is_floating(t)]
            return [(source, has_gradient(t)) for t in read if (source := self._source(t)) is not None]
        return []

    def _note(self, name: str, given: Sequence[tuple[Source, bool]], made: Sequence[Any]) -> None:
        is_recorded = bool(_is_recording())
        carries = is_recorded and name not in _STOPS and any(has for _, has in given)
        if is_view := name in VIEWS and len(given) == 1:
            source = given[0][0]
        else:
            site = "" if all(has for _, has in given) else self._places.here().site  # that of a cut alone is asked for
            source = Node(site, name, is_recorded, given)
        for tensor in made:
            self._made[address(tensor), carries] = source
            self._alive.append(tensor)
            if is_view or name in _STOPS:
                self._views.append((tensor, source))
            self._n_bytes += int(tensor.nbytes)
        self.is_lost = self._n_bytes > ALIVE_BYTES

    def _source(self, tensor: Any) -> Source | None:
        at, carries = address(tensor), has_gradient(tensor)
        found = self._made.get((at, carries), self._made.get((at, not carries), self._numbers.get(at)))
        if found is None:
            return self._copied(tensor, carries)
        if carries and (number := made_by(tensor)) >= 0:
            self._by_number[number] = found
        return found

    def _copied(self, tensor: Any, carries: bool) -> Source | None:
        """Return what made the view that this is a copy of."""
        if carries and (known := [n for n in behind(tensor) if n in self._by_number]):
            return self._by_number[known[0]]
        alike = (each for each in reversed(self._views) if each[0].shape == tensor.shape)
        return next((source for view, source in alike if same_values(values(view), values(tensor))), None)
