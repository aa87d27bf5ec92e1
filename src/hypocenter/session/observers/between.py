"""The law "nothing between": what an update left is what the next one starts from. For HC231.

After an update a sample of parameters and of the optimizer's state is kept, and compared with what is there before the
next update of that optimizer. Some parameters in turn are looked at, at updates that lie further and further apart, and
all of them at steps of `--audit`.

A program may write to its parameters on purpose, and then it mostly has the habit: it clips them after each update, or
averages them every few. So a change counts only where there was none between at least STAYS pairs of updates before, or
is none between FOLLOWED pairs after it, and only once for each tensor.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hypocenter import schedule
from hypocenter.detect.law_rows import BALANCED, BETWEEN, CHANGED, GONE, OPTION, SITE
from hypocenter.nouns import Reading, replace
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.optimizer_rows import count_row, number_row
from hypocenter.session.observers.sampled import sample
from hypocenter.tap.gradients import to_host
from hypocenter.tap.source import source_of

ELEMENTS = 256  # of a tensor
GROUPS = 8  # whose options are looked at
_SCHEDULED = frozenset({"lr", "momentum", "initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum"})
PARAMETERS = 32  # in one step that is not audited
STAYS, FOLLOWED = 2, 4  # pairs of updates
ROUNDINGS, FEW_ROUNDINGS = 32, 2  # of the largest of a tensor, in its format, or in a format of 16 bits: no write

_Key = tuple[int, str]  # id of a parameter, and "value" or the name of its state


@dataclass(slots=True)
class _Track:
    """What is known of one tensor."""

    n_stayed: int = 0  # pairs of updates in a row
    event: Reading | None = None  # a change that may be a habit
    is_over: bool = False  # it was told, or is a habit


@dataclass(slots=True)
class _Kept:
    """What an optimizer's update left."""

    optimizer: weakref.ref[Any]
    values: dict[_Key, tuple[weakref.ref[Tensor], Tensor | float]] = field(default_factory=dict)
    n_updates: int = 0
    options: list[dict[str, float]] = field(default_factory=list)  # of its first groups
    track: _Track = field(default_factory=_Track)  # of the options

    def keep(self, found: Sequence[tuple[_Key, Tensor, Tensor | float]]) -> None:
        """Copy these: (key, parameter, sample or number). All samples of a format on a device in one operation."""
        self.values = {key: (weakref.ref(parameter), value) for key, parameter, value in found}
        for keys, samples in _by_kind({key: value for key, _, value in found}).values():
            copies = torch.cat(samples).split([each.numel() for each in samples])
            self.values.update({key: (self.values[key][0], each) for key, each in zip(keys, copies, strict=True)})


def _by_kind(values: Mapping[_Key, Tensor | float]) -> dict[tuple[Any, Any], tuple[list[_Key], list[Tensor]]]:
    """Samples of one device and format: their keys, and they themselves."""
    found: dict[tuple[Any, Any], tuple[list[_Key], list[Tensor]]] = {}
    for key, value in values.items():
        if isinstance(value, Tensor):
            keys, samples = found.setdefault((value.device, value.dtype), ([], []))
            keys.append(key)
            samples.append(value)
    return found


def _all_equal(before: Mapping[_Key, Tensor | float], now: Mapping[_Key, Tensor | float]) -> bool:
    """Whether nothing has changed: the usual case, in one transfer."""
    if before.keys() != now.keys():
        return False
    numbers = [(before[key], each) for key, each in now.items() if not isinstance(each, Tensor)]
    if any(isinstance(a, Tensor) or a != b for a, b in numbers):
        return False
    differ: list[Tensor] = []
    after = _by_kind(now)
    for kind, (keys, samples) in _by_kind(before).items():
        if (
            kind not in after
            or [s.numel() for s in after[kind][1]] != [s.numel() for s in samples]
            or after[kind][0] != keys
        ):
            return False
        differ.append((torch.cat(samples) != torch.cat(after[kind][1])).any().float())
    return not any(to_host(differ)) if differ else True


class Between(Observer):
    """Writes rows of what has changed between two updates."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._is_due = schedule.parse("doubling")
        self._audits = context.audits
        self._kept: dict[int, _Kept] = {}  # by id of the optimizer: not every one has a hash
        self._tracks: dict[_Key, _Track] = {}

    def after_update(self, update: Update) -> None:
        """Keep what it left."""
        moved = {id(p) for p in update.parameters} if any(kept.values for kept in self._kept.values()) else set[int]()
        for other in self._kept.values():  # one optimizer may move what another one has left
            other.values = {key: each for key, each in other.values.items() if key[0] not in moved}
        optimizer = self.context.framework.optimizer(update.optimizer)
        if optimizer is None:
            return
        kept = self._of(optimizer)
        kept.n_updates += 1
        kept.options = _options(optimizer)
        kept.values = {}
        chosen = self._chosen(optimizer, kept.n_updates, update.step + 1)
        if not chosen:
            return
        with torch.no_grad(), self._audits.spending():
            kept.keep([((id(p), name), p, value) for p in chosen for name, value in _held(optimizer, p)])

    def _of(self, optimizer: Any) -> _Kept:
        kept = self._kept.get(id(optimizer))
        if kept is None or kept.optimizer() is not optimizer:
            kept = self._kept[id(optimizer)] = _Kept(weakref.ref(optimizer))
        return kept

    def _chosen(self, optimizer: Any, n_updates: int, step: int) -> Sequence[Tensor]:
        """What is looked at before the update of the next step."""
        followed = {key[0] for key, track in self._tracks.items() if track.event is not None}
        is_audited, is_due = self._audits.is_due(step), self._is_due(n_updates)
        if not (is_audited or is_due or followed):
            return []
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if is_audited:
            return parameters
        stride = -(-len(parameters) // PARAMETERS) if parameters else 1
        some = parameters[n_updates % stride :: stride] if is_due else []
        return [*some, *(p for p in parameters if id(p) in followed and not any(p is one for one in some))]

    def before_update(self, update: Update) -> None:
        """Compare it with what is there."""
        optimizer = self.context.framework.optimizer(update.optimizer)
        if optimizer is None:
            return
        kept = self._of(optimizer)
        if kept.options:
            self._look_at_options(kept, _options(optimizer), update.step)
        if not kept.values or not update.check.is_finite:
            return
        before, kept.values = kept.values, {}
        alive = {key: (p, value) for key, (ref, value) in before.items() if (p := ref()) is not None}
        with torch.no_grad(), self._audits.spending():
            parameters = {key[0]: p for key, (p, _) in alive.items()}
            now = {(i, name): value for i, p in parameters.items() for name, value in _held(optimizer, p)}
            now = {key: now[key] for key in alive if key in now}
            if _all_equal({key: value for key, (_, value) in alive.items()}, now):
                looked = [(key, p, _size(value), 0.0) for key, (p, value) in alive.items()]
                counts = [0.0] * len(looked)
            else:
                looked = [(key, p, *_compared(value, now.get(key))) for key, (p, value) in alive.items()]
                counts = to_host([n for *_, n in looked])
        for (key, parameter, n, _), n_changed in zip(looked, counts, strict=True):
            self._look(key, parameter, update.step, (n, round(n_changed)))
        order, changed = self.context.clock.next_order, sum(map(bool, counts))
        kinds = {key[1] for (key, *_), n in zip(looked, counts, strict=True) if n}
        for kind in sorted(kinds):
            of_kind = [n for (key, *_), n in zip(looked, counts, strict=True) if key[1] == kind]
            pair = len(of_kind), sum(map(bool, of_kind))
            self.rows.append(count_row(SITE, CHANGED, update.step, order(), pair, module=kind))
        if self._audits.is_due(update.step):
            balanced = len(looked), len(looked) - changed
            self.rows.append(count_row(SITE, BALANCED, update.step, order(), balanced, module=BETWEEN))

    def _look_at_options(self, kept: _Kept, now: list[dict[str, float]], step: int) -> None:
        row: Reading | None = None
        if now != kept.options and len(now) == len(kept.options):
            number, name = next(
                (i, name) for i, group in enumerate(now) for name in group if group[name] != kept.options[i].get(name)
            )
            order = self.context.clock.next_order()
            row = number_row(f"group[{number}].{name}", CHANGED, step, order, now[number][name], module=OPTION)
            row = replace(row, op=f"{kept.options[number].get(name, math.nan):g}")
        self._follow(kept.track, row, step)

    def _look(self, key: _Key, parameter: Tensor, step: int, counts: tuple[int, int]) -> None:
        track = self._tracks.setdefault(key, _Track())
        self._follow(track, self._row(key, parameter, step, counts) if counts[1] else None, step)

    def _follow(self, track: _Track, row: Reading | None, step: int) -> None:
        """One more look: what has changed, or None."""
        if row is None:
            track.n_stayed += 1
            if track.event is not None and track.n_stayed >= FOLLOWED:
                self._tell(track, replace(track.event, step=step, call=step - track.event.step))
            return
        if track.is_over or track.event is not None:
            track.is_over, track.event = True, None
        elif track.n_stayed >= STAYS and row.module != OPTION:
            self._tell(track, row)
        else:
            track.event = row
        track.n_stayed = 0

    def _tell(self, track: _Track, row: Reading) -> None:
        self.rows.append(row)
        track.is_over, track.event = True, None

    def _row(self, key: _Key, parameter: Tensor, step: int, counts: tuple[int, int]) -> Reading:
        row = count_row(
            self.context.label(parameter), CHANGED, step, self.context.clock.next_order(), counts,
            shape=tuple(parameter.shape), module=key[1],
        )  # fmt: skip
        writer = self.context.writer_of(parameter)
        source = source_of(writer[0].co_filename, writer[1], writer[0].co_name) if writer is not None else None
        return replace(row, source=source, op="" if counts[0] else GONE)


def _options(optimizer: Any) -> list[dict[str, float]]:
    """Numbers of its first groups; of what a schedule of torch moves nothing."""
    return [
        {
            name: value
            for name, value in group.items()
            if type(value) in (int, float) and not ("initial_lr" in group and name in _SCHEDULED)
        }
        for group in optimizer.param_groups[:GROUPS]
    ]


def _held(optimizer: Any, parameter: Tensor) -> Iterator[tuple[str, Tensor | float]]:
    """("value" or name of state, sample of it), not copied."""
    values = sample(parameter.detach(), ELEMENTS)
    if values is not None:
        yield "value", values
    state: Any = optimizer.state.get(parameter)  # asking with [] would make an entry
    for name, value in state.items() if isinstance(state, Mapping) else ():
        if isinstance(value, Tensor):
            if (found := sample(value.detach(), ELEMENTS)) is not None:
                yield str(name), found
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield str(name), float(value)


def _size(value: Tensor | float) -> int:
    return value.numel() if isinstance(value, Tensor) else 1


def _compared(before: Tensor | float, now: Tensor | float | None) -> tuple[int, Tensor]:
    """Elements that were looked at, 0 if there is nothing any more, and how many have changed."""
    if now is None:
        return 0, torch.ones(())
    a, b = (torch.as_tensor(each) for each in (before, now))
    if a.shape != b.shape or a.device != b.device:
        return b.numel(), torch.full((), float(b.numel()))
    if not a.is_floating_point() or not b.is_floating_point():
        return b.numel(), (a != b).sum().float()
    # who moves a weight and puts it back by arithmetic leaves a rounding
    n_roundings = ROUNDINGS if a.element_size() > 2 else FEW_ROUNDINGS
    slack = n_roundings * torch.finfo(a.dtype).eps * a.abs().nan_to_num(0.0, 0.0, 0.0).max()
    return b.numel(), (~((a - b).abs() <= slack) & (a != b) & ~((a != a) & (b != b))).sum().float()
