"""Programs that only compute outputs: the output of each outermost module is looked at, until something is trained.

There is no loss that would show a bad value, and no update that ends a step: a call of the model counts as one.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import torch

from hypocenter.capturing import is_capturing
from hypocenter.diagnose.evidence import Trigger
from hypocenter.nouns import Reading, StepRecord, Summary
from hypocenter.replay.case import Outcome
from hypocenter.session.failures import Failures
from hypocenter.tap.clock import Clock
from hypocenter.tap.gradients import local
from hypocenter.tap.names import NameMap
from hypocenter.tap.quiet import quietly
from hypocenter.tap.tree import tensors
from hypocenter.tap.weakly import Ref

FEW = 4  # tensors of an output that are looked at: those of a model begin with logits, caches of keys and values follow
LATER = 32  # outputs whose counts are fetched together from a device that has to be waited for


@dataclass(frozen=True, slots=True)
class _Output:
    """One tensor that a call returned, and how many of its elements are NaN, +inf, -inf (int64, on its device)."""

    call: int
    site: str
    module: str
    port: str
    is_gradient: bool  # or may be one
    tensor: weakref.ref[torch.Tensor]
    dtype: str
    shape: tuple[int, ...]
    counts: torch.Tensor


class Inference:
    """Finds the first output that holds NaN or +inf. -inf alone is how masks are written.

    Args:
        names: the user's names.
        clock: knows whether something has been trained.
        failures: finds out how the output came to be.
        rank: this rank, and how many there are.
    """

    def __init__(self, names: NameMap, clock: Clock, failures: Failures, rank: Callable[[], tuple[int, int]]) -> None:
        self._names, self._clock, self._failures, self._rank = names, clock, failures, rank
        self._n_calls = Counter[tuple[str, str]]()  # by what was called
        self._waiting: list[_Output] = []
        self._found: tuple[Reading, Outcome | None] | None = None  # and how it came to be

    @property
    def is_all(self) -> bool:
        """Whether nothing has been trained so far."""
        return self._clock.batch == 0 and self._clock.step == 0

    def look(self, module: torch.nn.Module, output: object) -> None:
        """Look at the output of an outermost module whose call is over."""
        if (self._clock.batch or self._clock.step) and self._found is None and not self._waiting:
            return  # something has been trained
        if self._is_wanted():
            given = list(islice(tensors(output), FEW))
            self._take(self._names.module_name(module) or "", type(module).__name__, given, is_gradient=False)

    def look_at_result(self, output: object, has_gradients: bool) -> None:
        """Look at the output of a function that torch.func has transformed, whose call is over."""
        if self._is_wanted():
            given = sorted(tensors(output), key=lambda each: each[1].numel())[:FEW]  # a loss is small, gradients large
            self._take("torch.func", "", given, is_gradient=has_gradients)

    def _is_wanted(self) -> bool:
        if self._found is not None or not self.is_all:
            self._waiting.clear()
            self._found = self._found if self.is_all else None
            return False
        return not _is_recorded()

    def _take(self, site: str, module: str, given: list[tuple[str, torch.Tensor]], *, is_gradient: bool) -> None:
        waits = False
        with quietly(), torch.no_grad():
            for port, tensor in given:
                here = local(tensor)  # of a DTensor what this rank has: asking for all would be a collective
                if here is not None and _can_be_counted(here):
                    counts = torch.stack([here.isnan().sum(), here.isposinf().sum(), here.isneginf().sum()])
                    self._waiting.append(
                        _Output(
                            self._n_calls[site, module], site, module, f"out{port}", is_gradient, Ref(tensor),
                            str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), counts,
                        )
                    )  # fmt: skip
                    waits = waits or counts.device.type != "cpu"
        self._n_calls[site, module] += 1
        if not waits or len(self._waiting) >= LATER:
            self._read()

    def _read(self) -> None:
        waiting, self._waiting = self._waiting, []
        for output, counts in zip(waiting, _to_host([each.counts for each in waiting]), strict=True):
            n_nan, n_posinf, n_neginf = counts
            if n_nan or n_posinf:
                summary = Summary(n=_numel(output.shape), n_nan=n_nan, n_posinf=n_posinf, n_neginf=n_neginf)
                row = Reading(
                    step=output.call, microbatch=0, phase="forward", site=output.site, port=output.port, order=0,
                    dtype=output.dtype, shape=output.shape, summary=summary, module=output.module,
                )  # fmt: skip
                trigger: Trigger = "nonfinite-grad" if output.is_gradient else "nonfinite-output"
                self._found = row, self._failures.of_output(output.tensor(), row, trigger, *self._rank())
                return

    def at_end(self) -> tuple[list[Reading], StepRecord | None]:
        """Return the rows and the step record to write of a program that has trained nothing ([] and None: nothing)."""
        if self.is_all:
            with quietly():
                self._read()
        if self._found is None or not self.is_all:
            return [], None
        row, outcome = self._found
        return [row], StepRecord(step=row.step, finding=self._failures.write(outcome))


def _is_recorded() -> bool:
    """Return whether what runs now goes into a graph of the program's own (export, make_fx, CUDA graphs)."""
    return is_capturing() or bool(torch._C._len_torch_dispatch_stack())


def _can_be_counted(tensor: torch.Tensor) -> bool:
    is_wide = tensor.is_floating_point() and tensor.dtype.itemsize > 1  # float8 has no such kernels
    return is_wide and tensor.layout == torch.strided and tensor.device.type != "meta"


def _numel(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


def _to_host(counts: list[torch.Tensor]) -> list[list[int]]:
    """Bring counts to the host, with one transfer per device."""
    found: dict[int, list[int]] = {}
    for device in {each.device for each in counts}:
        there = [at for at, each in enumerate(counts) if each.device == device]
        found |= dict(zip(there, torch.stack([counts[at] for at in there]).tolist(), strict=True))
    return [found[at] for at in range(len(counts))]
