"""The check of every step: loss, gradients and parameters in one fused pass and one transfer."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from hypocenter.nouns import Reading, Summary
from hypocenter.record.norm_rows import NormRows, NormTemplate
from hypocenter.session.check import Check, Judge, scalar_reading
from hypocenter.session.scalars import Scalar
from hypocenter.summary.reducers.torch_float64 import in_float64
from hypocenter.tap.clock import Clock
from hypocenter.tap.extremes import largest
from hypocenter.tap.flat_parameters import is_flat, originals, unfolded
from hypocenter.tap.gradients import (
    Gradients,
    NormReader,
    are_plain,
    is_finite,
    local,
    norms,
    read_norms,
    to_host,
    to_host_with,
    to_vector,
)
from hypocenter.tap.names import NameMap
from hypocenter.tap.tape import Microbatch

ROTATION = 8  # updates in which each float32 parameter is looked at once; all of them each time would cost 0.5 %
SETS = 64  # of parameters that are remembered: one for each optimizer, or each set of parameters that got gradients


def turns(n_parameters: int) -> int:
    """Return n: of so many float32 parameters of an optimizer, each is looked at in every n-th update."""
    return max(1, min(ROTATION, n_parameters))


@dataclass(slots=True)
class _Parameters:
    """Parameters that have gradients together, update after update, and what does not change about them."""

    tensors: list[torch.Tensor]
    names: list[str]
    reader: NormReader  # of their gradients
    ids: tuple[int, ...]
    templates: dict[tuple[Scalar, ...], NormTemplate] = field(default_factory=dict)  # of rows, by what goes with them


@dataclass(slots=True)
class Turn:
    """The parameters in full precision, of one optimizer, that are looked at in the same updates."""

    tensors: list[torch.Tensor]
    chosen: list[torch.Tensor]  # these, and all in half precision
    reader: NormReader


@dataclass(slots=True)
class Started:
    """Norms of parameters: numbers, or 0-d tensors on their devices until somebody has brought them."""

    parameters: Sequence[torch.Tensor]
    norms: list[Any]
    is_on_host: bool


_NONE = frozenset[int]()
_Held = tuple[_Parameters, Sequence[torch.Tensor]]
"""Parameters, and the values of their gradients that lie on this rank."""


class Sentinel:
    """Checks gradients before an update and parameters after it. One device-to-host transfer per check."""

    def __init__(self, names: NameMap, clock: Clock) -> None:
        self._names = names
        self._clock = clock
        self._judge = Judge(is_finite, _exact_norm)
        self._all_alive: _Parameters | None = None  # of the last check, if no gradient was zero there
        self._labels: dict[int, tuple[torch.Tensor, str]] = {}  # holds the parameter: its id is not given anew
        self._known: dict[tuple[int, ...], _Parameters] = {}  # by `_key`
        self._last = _Parameters([], [], NormReader([]), ())  # of the last update's gradients
        self._riders: list[tuple[torch.Tensor, Callable[[Sequence[float]], None]]] = []

    def ride(self, numbers: torch.Tensor, read: Callable[[Sequence[float]], None]) -> None:
        """Take a float32 vector along in the next transfer of gradients' norms, and give it to `read` then."""
        self._riders.append((numbers, read))

    def gradients(
        self,
        gradients: Sequence[tuple[torch.Tensor, torch.Tensor]],
        microbatches: Sequence[Microbatch],
        *,
        scale: Callable[[], float] | None = None,
        remember: bool = True,
        ahead: Sequence[tuple[torch.Tensor, torch.Tensor]] = (),
        unused: Sequence[Microbatch] = (),
    ) -> Check:
        """Compute the norms of all gradients together with the losses, and say what is wrong with them.

        Args:
            gradients: (parameter, gradient) of the update that is about to happen.
            microbatches: of this step.
            scale: tells the loss scale that the gradients still carry, once riders are read; None: there is none.
            remember: note which gradients are exactly 0, to see at the next step which have died.
            ahead: what other optimizers are going to use after this update: comes as a check of its own.
            unused: losses that nobody goes back from.
        """
        parts = [self._held(gradients)] + ([self._held(ahead)] if ahead else [])
        values: list[torch.Tensor] = []
        for microbatch in microbatches:  # loops, as comprehensions are calls and this runs at each step
            values += microbatch.values
        found: list[list[float] | None] = []
        waiting: list[torch.Tensor] = []
        for part in parts:
            known, there = part
            norms_ = _norms_of(known, there) if known.reader.is_on_host else None
            found.append(norms_)
            if norms_ is None:
                waiting += norms(there)
        waiting += values
        for microbatch in unused:
            waiting.append(microbatch.values[0])
        riders, self._riders = self._riders, []
        host, told = to_host_with(waiting, [numbers for numbers, _ in riders] if riders else ())
        for (_, read), numbers in zip(riders, told, strict=True):
            read(numbers)
        left, at = 1.0 if scale is None else scale(), 0
        checks: list[Check] = []
        for part, on_host in zip(parts, found, strict=True):
            n = 0 if on_host is not None else len(part[1])
            is_first = not checks
            checks.append(
                self._judged(part, host[at : at + n] if on_host is None else on_host,
                             scale=left, remember=remember and is_first)
            )  # fmt: skip
            at += n
        check = checks[0]
        check.losses, check.unused = host[at : at + len(values)], host[at + len(values) :]
        if not check.bad_params and all(map(math.isfinite, check.losses)):
            check.is_finite = check.loss_finite = True  # each step asks, and to find it out is two calls each time
        check.ahead = checks[1] if len(checks) > 1 and parts[1][1] else None
        if remember:
            self._last = parts[0][0]
        return check

    def look_before_change(
        self,
        gradients: Sequence[tuple[torch.Tensor, torch.Tensor]],
        then: Callable[[Check], None],
        *,
        is_urgent: bool,
        with_peaks: bool,
    ) -> None:
        """Give `then` the norms of gradients that the program is about to change: now, or with the next transfer.

        Later only where it is not urgent and they lie on one device. By then the gradients are changed: a norm that
        is not finite was that of a bad gradient if the gradient is still not finite, for no clip makes it so.

        Args:
            with_peaks: if it is later, take the largest magnitude of each too: whether it was finite, and how large it
                was, is known then whatever has become of it.
        """
        known, values = held = self._held(gradients)
        if is_urgent or known.reader.is_on_host or len({value.device for value in values}) != 1:
            then(self.gradients(gradients, (), remember=False))
        else:
            numbers, n = norms(values), len(values)
            if with_peaks:
                numbers += largest(values)
            self.ride(
                to_vector(numbers),
                lambda host: then(self._judged(held, list(host[:n]), scale=1.0, remember=False, peaks=host[n:])),
            )

    def _held(self, gradients: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> _Held:
        """Return the parts of these gradients that lie on this rank, by the user's parameters."""
        if isinstance(gradients, Gradients):
            parameters, values = gradients.parameters, gradients.values
        else:
            parameters, values = [p for p, _ in gradients], [g for _, g in gradients]
        known = self._known.get(_key(parameters))
        if known is not None and are_same(known.tensors, parameters) and known.reader.fits(values):
            return known, values
        here = [(p, g) for p, grad in gradients if (g := local(grad)) is not None]
        pairs = [pair for p, g in here for pair in unfolded(p, g)]
        parameters, values = [p for p, _ in pairs], [g for _, g in pairs]
        return self._of(parameters, values), values

    def _of(self, parameters: list[torch.Tensor], values: Sequence[torch.Tensor]) -> _Parameters:
        """Return what is kept of parameters with such gradients; make it when they are new."""
        key = _key(parameters)
        known = self._known.get(key)
        if known is not None and are_same(known.tensors, parameters) and known.reader.fits(values):
            return known
        names = [self.label(parameter) for parameter in parameters]
        made = _Parameters(parameters, names, NormReader(values), tuple(map(id, parameters)))
        if parameters and all(map(self._labels.__contains__, made.ids)):  # others may get a name yet
            if len(self._known) >= SETS:
                self._known.clear()
            self._known[key] = made
        return made

    def _judged(
        self, held: _Held, found: list[float], *, scale: float, remember: bool, peaks: Sequence[float] = ()
    ) -> Check:
        """Return what the norms of these gradients tell."""
        known, values = held
        check = Check(peaks=dict(zip(known.names, peaks, strict=True)) if peaks else {})
        if found and min(found) > 0.0 and math.isfinite(sum(found)):  # a NaN makes the sum one
            norms = found if scale == 1.0 else [n / scale for n in found]
            check.grad_norms, check.names = dict(zip(known.names, norms, strict=True)), known.names
            check.key, check.total_norm = known.names[0], math.hypot(*norms)  # each step asks for them
            if remember and known is not self._all_alive:
                self._judge.alive.update(dict.fromkeys(known.ids, True))
                self._all_alive = known
            return check
        self._all_alive = None
        pairs = list(zip(known.tensors, values, strict=True))
        self._judge.add(check, pairs, known.names, found, scale=scale, remember=remember)
        return check

    def start_parameters(
        self, parameters: Sequence[torch.Tensor], turn: int | None = None, known: dict[int, Turn] | None = None
    ) -> Started:
        """Start to compute norms after an update; `bad_parameters` reads those on devices, now or at the next check.

        Args:
            parameters: of the optimizer.
            turn: half-precision parameters, whose updates do break, are looked at each time; of the others only those
                whose turn it is, at least one. None: all.
            known: of this optimizer, by turn; filled and used again.
        """
        if turn is not None and parameters and (now := _in_turn(parameters, turn, {} if known is None else known)):
            found = _norms_of(now, now.chosen) if now.reader.is_on_host else None
            return Started(now.chosen, norms(now.chosen) if found is None else found, found is not None)
        chosen = parameters if turn is None else _chosen(parameters, turn)
        here = [(p, v) for p in chosen if (v := local(p)) is not None]
        values = [v for _, v in here]
        found = read_norms(values)
        return Started([p for p, _ in here], norms(values) if found is None else found, found is not None)

    def bad_parameters(self, started: Started) -> list[torch.Tensor]:
        """Return the parameters that hold non-finite values."""
        if not started.is_on_host:
            places = [i for i, norm in enumerate(started.norms) if isinstance(norm, torch.Tensor)]
            for place, norm in zip(places, to_host([started.norms[i] for i in places]) if places else [], strict=True):
                started.norms[place] = norm
        if math.isfinite(sum(started.norms)):  # a NaN makes the sum one
            return []
        suspects = [p for p, norm in zip(started.parameters, started.norms, strict=True) if not math.isfinite(norm)]
        return [p for p in suspects if (values := local(p)) is not None and not is_finite(values)]

    def label(self, parameter: torch.Tensor) -> str:
        """Return the user's name of a parameter; one outside every watched model is named by its shape."""
        known = self._labels.get(id(parameter))
        if known is not None and known[0] is parameter:
            return known[1]
        name = self._names.param_name(parameter)
        if name is None:
            return f"parameter {tuple(parameter.shape)} outside the model"
        self._labels[id(parameter)] = (parameter, name)
        return name

    def labels_of_bad(self, parameter: torch.Tensor) -> list[str]:
        """Name what is not finite in a parameter: a flat one of FSDP1 may hold several of the user's parameters."""
        values = local(parameter) if is_flat(parameter) else None
        parts = [] if values is None else unfolded(parameter, values)
        return [self.label(p) for p, part in parts if not is_finite(part)] or [self.label(parameter)]

    def rows(
        self,
        check: Check,
        step: int,
        parameters: Sequence[torch.Tensor],
        kinds: tuple[Scalar, ...] = (),
        values: Sequence[float] = (),
    ) -> NormRows:
        """Return a row for each local norm, of which only the number of elements and the sum of squares are known.

        Args:
            parameters: that the optimizer holds.
            kinds: numbers of the step that come after them.
            values: of these numbers.
        """
        names, norms = list(check.grad_norms), list(check.grad_norms.values())
        known = self._last if self._last.names is check.names or self._last.names == names else None
        template = known.templates.get(kinds) if known is not None else None
        if template is None:
            template = _template(names, {self.label(o): o for p in parameters for o in _as_named(p)}, kinds)
            if known is not None:
                known.templates[kinds] = template
        bad = _NONE
        if check.names is None and not check.has_finite_norms:
            bad = frozenset(i for i, n in enumerate(norms) if not math.isfinite(n) or names[i] in check.bad_params)
        first_order = self._clock.next_order(len(names) + len(kinds))
        return NormRows(template, step=step, first_order=first_order, norms=[*norms, *values], bad=bad)


def are_same(known: Sequence[torch.Tensor], now: Sequence[torch.Tensor]) -> bool:
    """Return whether these are the very same tensors."""
    return known is now or (len(known) == len(now) and all(map(operator.is_, known, now)))


def _key(parameters: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Tell lists apart, the same parameters in another order too: a clip has them by module, an optimizer by group."""
    n = len(parameters)
    return (id(parameters[0]), id(parameters[n // 3]), id(parameters[n // 2]), id(parameters[-1]), n) if n else ()


def _norms_of(known: _Parameters | Turn, values: Sequence[torch.Tensor]) -> list[float] | None:
    try:
        return known.reader.read(values)
    except (TypeError, RuntimeError, ValueError):  # the program has put other tensors into the same parameters
        known.reader = NormReader(values)
        return known.reader.read(values) if known.reader.is_on_host else None


def _chosen(parameters: Sequence[torch.Tensor], turn: int) -> list[torch.Tensor]:
    every = turns(len(parameters))
    return [p for i, p in enumerate(parameters) if p.dtype.itemsize < 4 or i % every == turn % every]


def _in_turn(parameters: Sequence[torch.Tensor], turn: int, known: dict[int, Turn]) -> Turn | None:
    """Return what is looked at in this turn; None where `local` must tell which part of it lies on this rank."""
    every = turns(len(parameters))
    mine, before = parameters[turn % every :: every], known.get(turn % every)
    if before is not None and are_same(before.tensors, mine) and before.reader.fits(before.chosen):
        return before
    chosen = _chosen(parameters, turn)
    if not chosen or not are_plain(chosen):
        return None
    made = known[turn % every] = Turn(list(mine), chosen, NormReader(chosen))
    return made


def _exact_norm(gradient: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(in_float64(gradient.detach())))


def _as_named(parameter: torch.Tensor) -> list[torch.Tensor]:
    """Return the user's parameters that one of an optimizer's parameters holds."""
    return [original for _, original in originals(parameter)] if is_flat(parameter) else [parameter]


def _template(names: Sequence[str], parameters: Mapping[str, torch.Tensor], kinds: Sequence[Scalar]) -> NormTemplate:
    """Make rows to be filled: of parameters by name (one that is gone has a name only), then of numbers."""
    rows: list[Reading] = []
    for name in names:
        p = parameters.get(name)
        dtype = "" if p is None else str(p.dtype).removeprefix("torch.")
        row = Reading(step=0, microbatch=0, phase="grad", site=name, port="grad", order=0, dtype=dtype)
        known = row if p is None else replace(row, shape=tuple(p.shape), summary=Summary(n=p.numel()))
        rows.append(known)
    of_scalars = (scalar_reading(k.site, k.phase, 0.0, 0, 0, k.microbatch, k.module) for k in kinds)
    return NormTemplate([*rows, *of_scalars])
