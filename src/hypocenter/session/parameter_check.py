"""Which update left parameters non-finite: some are looked at after each, all of them when something else has failed.

Of every optimizer is kept what its last update left behind. So it does not matter how many optimizers there are, in
which order they step, or whose turn it was to be looked at.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hypocenter.session.check import Check
from hypocenter.session.failures import Failures
from hypocenter.session.sentinel import Sentinel, Started, Turn, are_same, turns
from hypocenter.tap.tape import version_of, versions_of
from hypocenter.tap.weakly import Ref


@dataclass(slots=True)
class _Left:
    """What the last update of one optimizer left behind."""

    optimizer: Callable[[], Any]
    parameters: Sequence[torch.Tensor]
    versions: list[int]  # of the parameters, after it
    step: int
    n_updates: int
    is_suspect: bool  # it or one before it used gradients that were not finite, and nobody has looked since
    turns: dict[int, Turn] = field(default_factory=dict)  # what is looked at in each turn


class ParameterCheck:
    """Blames an update for parameters that it broke, and nobody for what a failure known already has done to them."""

    def __init__(
        self,
        sentinel: Sentinel,
        failures: Failures,
        rank: Callable[[], tuple[int, int]],
        gone: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._sentinel, self._failures, self._rank = sentinel, failures, rank
        self._gone = gone  # told of the id of an optimizer that the program has let go of
        self._left: dict[int, _Left] = {}  # by id of the optimizer; goes with it
        self._last: Any = (
            None  # the optimizer that stepped last: looked at once more at the end, also if it is gone by then
        )
        self._started: tuple[_Left, Started] | None = None
        self._bad: list[weakref.ref[torch.Tensor]] = []  # found not finite, and reported

    def start(self, parameters: Sequence[torch.Tensor], optimizer: Any, step: int, *, is_suspect: bool) -> bool:
        """Begin to look at parameters after an update; return whether the answer is there already, as it is on a CPU.

        Args:
            is_suspect: its gradients were not finite and it was not skipped: what it wrote has been explained already.
        """
        self._last = optimizer
        before = self._left.get(id(optimizer))
        left = self._left[id(optimizer)] = _Left(
            optimizer=before.optimizer if before is not None else self._held(optimizer),
            parameters=parameters,
            versions=versions_of(parameters),
            step=step,
            n_updates=0 if before is None else before.n_updates + 1,
            is_suspect=is_suspect or (before is not None and before.is_suspect),
            turns={} if before is None else before.turns,
        )
        started = self._sentinel.start_parameters(parameters, left.n_updates, left.turns)
        self._started = (left, started)
        if not started.is_on_host:
            for device in {norm.device for norm in started.norms}:
                self._ride(started, device)
        return started.is_on_host

    def _ride(self, started: Started, device: torch.device) -> None:
        """Let norms on a device come to the host together with those of the next gradients."""
        places = [i for i, norm in enumerate(started.norms) if isinstance(norm, torch.Tensor) and norm.device == device]

        def arrived(host: Sequence[float]) -> None:
            for place, norm in zip(places, host, strict=True):
                started.norms[place] = norm

        self._sentinel.ride(torch.stack([started.norms[i] for i in places]), arrived)

    def known(self, optimizer: Any, parameters: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return the list that the last update of this optimizer was given, if these are the same ones."""
        left = self._left.get(id(optimizer))
        return left.parameters if left is not None and are_same(left.parameters, parameters) else parameters

    def let_go(self, optimizer: Any) -> None:
        """Let go of the last optimizer, as another one is about to step: if the program dropped it, it can be freed."""
        if self._last is not optimizer:
            self._last = None

    def _held(self, optimizer: Any) -> Callable[[], Any]:
        """Refer to an optimizer weakly: programs that make one for each task must not keep them all alive."""
        me, key = Ref(self), id(optimizer)

        def forget(_: object) -> None:
            if (check := me()) is not None:
                check._left.pop(key, None)
                check._gone(key)

        try:
            return Ref(optimizer, forget)
        except TypeError:  # a framework's own class with slots
            return lambda: optimizer

    def read(self) -> str:
        """Read the answer to the last `start`; return the id of the evidence written, or ""."""
        if self._started is None:
            return ""
        (left, started), self._started = self._started, None
        bad = self._sentinel.bad_parameters(started)
        if not bad or left.is_suspect or self._is_known():
            return ""
        every = turns(len(left.parameters))
        is_each_time = every == 1 or bad[0].dtype.itemsize < 4
        note = "" if is_each_time else f"it is looked at in every {every}th update: it may have been an earlier one"
        return self._blame(bad, left, must_prove=False, note=note)

    def at_end(self) -> str:
        """Look at all parameters that nobody has written to since their update: the program ends."""
        found = self.read()
        for left in list(self._left.values()):
            if not left.is_suspect and not self._is_known() and all(map(_as_left_by(left), left.parameters)):
                bad = self._sentinel.bad_parameters(self._sentinel.start_parameters(left.parameters))
                found = (self._blame(bad, left, must_prove=False) if bad else "") or found
        self._last = None
        self._left.clear()
        return found

    def look_back(self, check: Check) -> tuple[str, dict[str, float | str]]:
        """Find out if parameters were bad before something was not finite; tells `Failures` if that is explained.

        Returns:
            The id of the evidence written, or '', and what is known of a bad parameter that nothing explains.
        """
        self._failures.poisoned = False
        if check.is_finite:
            return "", {}
        self._failures.poisoned = self._is_known()
        bad = [] if self._failures.poisoned else list(self._bad_ones())
        if not bad:
            return "", {}
        self._note(bad)
        holders = [left for left in self._left.values() if any(_index(left, p) is not None for p in bad)]
        if any(left.is_suspect for left in holders):
            self._failures.poisoned = True
            return "", {}
        last = max(holders, key=lambda left: left.step)
        own = [p for p in bad if _index(last, p) is not None]
        is_untouched = all(map(_as_left_by(last), own))
        found = self._blame(own, last, must_prove=True) if is_untouched else ""
        return found, {
            "bad_parameter": self._sentinel.label(own[0]),
            "last_update_step": float(last.step),
            "written_since": float(not is_untouched),
        }

    def _is_known(self) -> bool:
        """Return whether a parameter that has been reported is still not finite."""
        held = [p for ref in self._bad if (p := ref()) is not None]
        still = self._sentinel.bad_parameters(self._sentinel.start_parameters(held)) if held else []
        self._bad = [Ref(p) for p in still]
        return bool(still)

    def _bad_ones(self) -> Iterator[torch.Tensor]:
        seen: dict[int, torch.Tensor] = {id(p): p for left in self._left.values() for p in left.parameters}
        bad = self._sentinel.bad_parameters(self._sentinel.start_parameters(list(seen.values())))
        if not bad:
            for left in self._left.values():
                left.is_suspect = False
        yield from bad

    def _note(self, bad: Sequence[torch.Tensor]) -> None:
        self._bad = [Ref(p) for p in bad]

    def _blame(self, bad: list[torch.Tensor], left: _Left, *, must_prove: bool, note: str = "") -> str:
        self._note(bad)
        labels = [label for p in bad for label in self._sentinel.labels_of_bad(p)]
        found = self._failures.parameter_broke(
            bad, left.optimizer(), left.step, self._rank()[0], labels, must_prove=must_prove, note=note
        )
        self._failures.poisoned = self._failures.poisoned or bool(found)
        return found


def _index(left: _Left, parameter: torch.Tensor) -> int | None:
    return next((i for i, p in enumerate(left.parameters) if p is parameter), None)


def _as_left_by(left: _Left) -> Callable[[torch.Tensor], bool]:
    """Return a function that tells whether a parameter is as that update left it, by its version counter."""
    versions = {id(p): version for p, version in zip(left.parameters, left.versions, strict=True)}
    return lambda parameter: versions.get(id(parameter)) == version_of(parameter)
