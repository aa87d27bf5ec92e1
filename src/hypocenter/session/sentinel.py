"""The check of every step: loss, gradients and parameters in one fused pass and one transfer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from hypocenter.nouns import Reading, Summary
from hypocenter.record.norm_rows import NormRows, NormTemplate
from hypocenter.session.check import Check, Judge
from hypocenter.summary.reducers.torch_float64 import in_float64
from hypocenter.tap.clock import Clock
from hypocenter.tap.flat_parameters import is_flat, originals, unfolded
from hypocenter.tap.gradients import are_plain, is_finite, local, norms, read_norms, to_host, to_host_with
from hypocenter.tap.names import NameMap
from hypocenter.tap.tape import Microbatch

ROTATION = 8  # updates in which each float32 parameter is looked at once; all of them each time would cost 0.5 %
TEMPLATES = 64  # of rows that are kept: one for each optimizer, and for each set of parameters that got gradients


def turns(n_parameters: int) -> int:
    """In every how many updates a float32 parameter of an optimizer with so many of them is looked at."""
    return max(1, min(ROTATION, n_parameters))


class Sentinel:
    """Checks gradients before an update and parameters after it. One device-to-host transfer per check."""

    def __init__(self, names: NameMap, clock: Clock) -> None:
        self._names = names
        self._clock = clock
        self._judge = Judge(is_finite, _exact_norm)
        self._all_alive: tuple[int, ...] = ()  # the parameters of the last check, if no gradient was zero there
        self._labels: dict[int, tuple[torch.Tensor, str]] = {}  # holds the parameter: its id is not given anew
        self._names_of: dict[tuple[int, ...], list[str]] = {}  # by ids of parameters that are all in `_labels`
        self._templates: dict[tuple[tuple[str, ...], frozenset[torch.dtype]], NormTemplate] = {}
        self._riders: list[tuple[torch.Tensor, Callable[[Sequence[float]], None]]] = []

    def ride(self, numbers: torch.Tensor, read: Callable[[Sequence[float]], None]) -> None:
        """Take a float32 vector along in the next transfer of gradients' norms, and give it to `read` then."""
        self._riders.append((numbers, read))

    def gradients(
        self,
        gradients: Sequence[tuple[torch.Tensor, torch.Tensor]],
        microbatches: Sequence[Microbatch],
        *,
        scale: Callable[[], float] = lambda: 1.0,
        remember: bool = True,
        ahead: Sequence[tuple[torch.Tensor, torch.Tensor]] = (),
        unused: Sequence[Microbatch] = (),
    ) -> Check:
        """Norms of all gradients together with the losses.

        Args:
            gradients: (parameter, gradient) of the update that is about to happen.
            microbatches: of this step.
            scale: tells the loss scale that the gradients still carry, once riders have been read.
            remember: note which gradients are exactly 0, to see at the next step which have died.
            ahead: what other optimizers are going to use after this update: comes as a check of its own.
            unused: losses that nobody goes back from.
        """
        held, held_ahead = self._held(gradients), self._held(ahead)
        values = [value for microbatch in microbatches for value in microbatch.values]
        thrown_away = [microbatch.values[0] for microbatch in unused]
        riders, self._riders = self._riders, []
        tensors = [g for _, g in held] + [g for _, g in held_ahead]
        found = read_norms(tensors)
        on_device = norms(tensors) if found is None else []
        host, told = to_host_with([*on_device, *values, *thrown_away], [numbers for numbers, _ in riders])
        host = (found or []) + host
        for (_, read), numbers in zip(riders, told, strict=True):
            read(numbers)
        n, n_all = len(held), len(held) + len(held_ahead)
        left = scale()
        check = self._judged(held, host[:n], scale=left, remember=remember)
        check.losses, check.unused = host[n_all : n_all + len(values)], host[n_all + len(values) :]
        if held_ahead:
            check.ahead = self._judged(held_ahead, host[n:n_all], scale=left, remember=False)
        return check

    def _held(
        self, gradients: Sequence[tuple[torch.Tensor, torch.Tensor]]
    ) -> Sequence[tuple[torch.Tensor, torch.Tensor]]:
        """What of these gradients lies on this rank, by the user's parameters."""
        if tuple([id(p) for p, _ in gradients]) in self._names_of and are_plain([g for _, g in gradients]):
            return gradients
        here = [(p, g) for p, grad in gradients if (g := local(grad)) is not None]
        return [pair for p, g in here for pair in unfolded(p, g)]

    def _judged(
        self, held: Sequence[tuple[torch.Tensor, torch.Tensor]], found: list[float], *, scale: float, remember: bool
    ) -> Check:
        """What the norms of these gradients tell."""
        check = Check()
        keys = tuple([id(parameter) for parameter, _ in held])
        names = self._labels_of(keys, held)
        if found and min(found) > 0.0 and math.isfinite(sum(found)):  # a NaN makes the sum one
            check.grad_norms = dict(zip(names, found if scale == 1.0 else [n / scale for n in found], strict=True))
            if remember and keys != self._all_alive:
                self._judge.alive.update(dict.fromkeys(keys, True))
                self._all_alive = keys
            return check
        self._all_alive = ()
        self._judge.add(check, held, names, found, scale=scale, remember=remember)
        return check

    def start_parameters(
        self, parameters: Sequence[torch.Tensor], turn: int | None = None
    ) -> list[tuple[torch.Tensor, torch.Tensor | float]]:
        """(parameter, norm) after an update; `bad_parameters` reads those on devices, now or at the next check.

        Args:
            parameters: of the optimizer.
            turn: half-precision parameters, whose updates do break, are looked at each time; of the others only those
                whose turn it is, at least one. None: all.
        """
        chosen = list(parameters)
        if turn is not None:
            every = turns(len(chosen))
            now = turn % every
            if min((dtype.itemsize for dtype in {p.dtype for p in chosen}), default=4) < 4:
                chosen = [p for i, p in enumerate(chosen) if p.dtype.itemsize < 4 or i % every == now]
            else:
                chosen = chosen[now::every]
        held, values = chosen, chosen
        if not are_plain(chosen):
            here = [(p, v) for p in chosen if (v := local(p)) is not None]
            held, values = [p for p, _ in here], [v for _, v in here]
        if not held:
            return []
        return list(zip(held, read_norms(values) or norms(values), strict=True))

    def bad_parameters(self, started: Sequence[tuple[torch.Tensor, torch.Tensor | float]]) -> list[torch.Tensor]:
        """Parameters that hold non-finite values."""
        on_device = [(p, norm) for p, norm in started if isinstance(norm, torch.Tensor)]
        read = to_host([norm for _, norm in on_device]) if on_device else []
        suspects = [p for (p, _), norm in zip(on_device, read, strict=True) if not math.isfinite(norm)]
        suspects += [p for p, norm in started if isinstance(norm, float) and not math.isfinite(norm)]
        return [p for p in suspects if (values := local(p)) is not None and not is_finite(values)]

    def label(self, parameter: torch.Tensor) -> str:
        """The user's name of a parameter; one outside every watched model is named by its shape."""
        known = self._labels.get(id(parameter))
        if known is not None and known[0] is parameter:
            return known[1]
        name = self._names.param_name(parameter)
        if name is None:
            return f"parameter {tuple(parameter.shape)} outside the model"
        self._labels[id(parameter)] = (parameter, name)
        return name

    def _labels_of(self, keys: tuple[int, ...], held: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[str]:
        """The user's names of parameters with these ids; kept where none is a flat one, which is cut up each time."""
        names = self._names_of.get(keys)
        if names is None:
            names = [self.label(parameter) for parameter, _ in held]
            if all(key in self._labels for key in keys) and not any(is_flat(p) for p, _ in held):
                if len(self._names_of) >= TEMPLATES:
                    self._names_of.clear()
                self._names_of[keys] = names
        return names

    def labels_of_bad(self, parameter: torch.Tensor) -> list[str]:
        """The user's names of what is not finite in a parameter: several, when it is a flat one of FSDP1."""
        values = local(parameter) if is_flat(parameter) else None
        parts = [] if values is None else unfolded(parameter, values)
        return [self.label(p) for p, part in parts if not is_finite(part)] or [self.label(parameter)]

    def rows(self, check: Check, step: int, parameters: Sequence[torch.Tensor]) -> NormRows:
        """One row per local norm: at this level only the number of elements and the sum of squares are known."""
        names = tuple(check.grad_norms)
        key = names, frozenset([p.dtype for p in parameters])
        template = self._templates.get(key)
        if template is None:
            template = _template(names, {self.label(o): o for p in parameters for o in _as_named(p)})
            if len(self._templates) >= TEMPLATES:
                self._templates.clear()
            self._templates[key] = template
        norms, bad = list(check.grad_norms.values()), frozenset[int]()
        if not check.has_finite_norms:
            bad = frozenset(i for i, n in enumerate(norms) if not math.isfinite(n) or names[i] in check.bad_params)
        first_order = self._clock.next_order(len(names))
        return NormRows(template, step=step, first_order=first_order, norms=norms, bad=bad)


def _exact_norm(gradient: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(in_float64(gradient.detach())))


def _as_named(parameter: torch.Tensor) -> list[torch.Tensor]:
    """The user's parameters in one of an optimizer's."""
    return [original for _, original in originals(parameter)] if is_flat(parameter) else [parameter]


def _template(names: Sequence[str], parameters: Mapping[str, torch.Tensor]) -> NormTemplate:
    """Rows of parameters by name; of one that is not known any more only the name is told."""
    rows: list[Reading] = []
    for name in names:
        p = parameters.get(name)
        dtype = "" if p is None else str(p.dtype).removeprefix("torch.")
        row = Reading(step=0, microbatch=0, phase="grad", site=name, port="grad", order=0, dtype=dtype)
        known = row if p is None else replace(row, shape=tuple(p.shape), summary=Summary(n=p.numel()))
        rows.append(known)
    return NormTemplate(rows)
