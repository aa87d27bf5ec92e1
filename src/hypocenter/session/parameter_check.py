"""Whether an update left parameters non-finite: looked at after it, read when the device has answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hypocenter.session.check import Check
from hypocenter.session.failures import Failures
from hypocenter.session.sentinel import Sentinel
from hypocenter.tap.tape import version_of


class ParameterCheck:
    """Blames the last update for parameters that it broke, and nobody else's writes."""

    def __init__(self, sentinel: Sentinel, failures: Failures, rank: Callable[[], tuple[int, int]]) -> None:
        self._sentinel, self._failures, self._rank = sentinel, failures, rank
        self._started: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._step = 0
        self._check: Check | None = None  # of the last update
        self._versions: dict[int, int] = {}  # of parameters, as the last update left them
        self._optimizer: Any = None
        self._parameters: Sequence[torch.Tensor] = ()

    def start(self, parameters: Sequence[torch.Tensor], optimizer: Any, step: int, check: Check) -> bool:
        """An update is over. Returns whether the answer is there already: on a CPU there is nothing to wait for.

        Args:
            check: of the same update; one whose gradients were bad has been explained already.
        """
        self._started = self._sentinel.start_parameters(parameters, step)
        self._versions = {id(p): version_of(p) for p in parameters}
        self._step, self._optimizer, self._parameters, self._check = step, optimizer, parameters, check
        return not self._started or self._started[0][1].device.type == "cpu"

    def restart(self) -> None:
        """The program ends: look at all parameters, unless somebody has written to them since."""
        if self._optimizer is not None and self._untouched(self._parameters):
            self._started = self._sentinel.start_parameters(self._parameters)

    def read(self) -> str:
        """The answer to the last `start`: the id of the evidence written, or ''."""
        started, self._started = self._started, []
        if not started or self._optimizer is None:
            return ""
        bad = self._sentinel.bad_parameters(started)
        check = self._check
        gradients_fine = check is None or (check.loss_finite and not check.bad_params)
        found = self._blame(bad, must_prove=False) if bad and gradients_fine and not self._failures.poisoned else ""
        self._failures.poisoned = bool(bad) or (self._failures.poisoned and not gradients_fine)
        return found

    def look_back(self, parameters: Sequence[torch.Tensor]) -> str:
        """The loss is not finite: were parameters broken by the last update, and by nobody else since?"""
        if self._failures.poisoned or self._optimizer is None:
            return ""
        bad = self._sentinel.bad_parameters(self._sentinel.start_parameters(parameters))
        return self._blame(bad, must_prove=True) if bad and self._untouched(bad) else ""

    def _untouched(self, parameters: Sequence[torch.Tensor]) -> bool:
        return all(self._versions.get(id(p)) == version_of(p) for p in parameters)

    def _blame(self, bad: list[torch.Tensor], *, must_prove: bool) -> str:
        labels = [label for p in bad for label in self._sentinel.labels_of_bad(p)]
        found = self._failures.parameter_broke(
            bad, self._optimizer, self._step, self._rank()[0], labels, must_prove=must_prove
        )
        self._failures.poisoned = self._failures.poisoned or bool(found)
        return found
