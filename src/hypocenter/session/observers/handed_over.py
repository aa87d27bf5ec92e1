"""The state that an optimizer goes on with is that of the same parameter, and of the same name. For HC259.

Whenever a model or an optimizer is asked for its `state_dict`, samples of the optimizers' state are kept. An optimizer
that begins with state, for parameters that are what they were then, must have been given what there was: where it has
what another parameter had, or another state of the same one, something was put into the wrong place. Where what most
parameters have is far from all that was there, it is of another rank, or of another time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from hypocenter.detect.law_rows import STATE_OF_ANOTHER
from hypocenter.nouns import replace
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.columns import VALUE, blocks
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.tap.host_memory import bytes_of
from hypocenter.tap.own_frame import RAISED, hear
from hypocenter.tap.weakly import Ref

ELEMENTS, FEWEST = 64, 4  # of a tensor, and that are needed to tell two apart
FAR = 0.5  # of the norm of what there was: no format rounds that much away
MOST = 8  # times that state is kept; who asks for it at every step does not resume from each

_Place = tuple[str, str]  # a parameter, and the name of its state


class HandedOver(Observer):
    """Writes a row for the first state that is that of another."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._kept: dict[_Place, bytes] = {}
        self._n_kept, self._step = 0, -1
        self._seen: dict[int, Ref[Any]] = {}  # optimizers that have made an update

    def attach(self) -> Callable[[], None]:
        """Hear of both."""
        undos = [hear(nn.Module, "state_dict", self._asked), hear(Optimizer, "state_dict", self._asked)]

        def undo() -> None:
            for each in undos:
                each()

        return undo

    def _asked(self, *_: Any) -> Callable[[Any], None] | None:
        step = self.context.clock.step
        if step == self._step or self._n_kept >= MOST or not self._seen:
            return None
        return lambda result: None if result is RAISED else self._keep(step)

    def _keep(self, step: int) -> None:
        self._step, self._n_kept = step, self._n_kept + 1
        alive = [optimizer for ref in self._seen.values() if (optimizer := ref()) is not None]
        self._kept = {place: each for optimizer in alive for place, each in self._held(optimizer).items()}

    def _held(self, optimizer: Any) -> dict[_Place, bytes]:
        """Samples of all parameters and their state, on the host: one transfer for each format."""
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.numel() >= FEWEST]
        held = [{VALUE: p, **_like(p, optimizer.state.get(p) or {})} for p in parameters]
        found: dict[_Place, bytes] = {}
        for block in blocks(self.context.framework, parameters, held, ELEMENTS):
            for name, column in block.columns.items():
                parts = replace(column, values=column.values.cpu()).parts()
                for parameter, part in zip(block.parameters, parts, strict=True):
                    found[self.context.label(parameter), name] = bytes_of(part.float().contiguous()).tobytes()
        places = [(self.context.label(p), name) for p, each in zip(parameters, held, strict=True) for name in each]
        return {place: found[place] for place in places if found[place]}

    def at_rest(self) -> Iterable[str]:
        """Only new optimizers are looked at."""
        return ("before_update",)

    def before_update(self, update: Update) -> None:
        """An optimizer that has made none before, with state."""
        optimizer = self.context.framework.optimizer(update.optimizer)
        if not isinstance(optimizer, Optimizer):
            return
        known = self._seen.get(id(optimizer))
        if known is not None and known() is optimizer:
            return
        self._seen[id(optimizer)] = Ref(optimizer)
        if self._kept and optimizer.state:
            self._compare(optimizer, update.step)

    def _compare(self, optimizer: Optimizer, step: int) -> None:
        then = {label for label, _ in self._kept}
        held = {(_name_then(label, then), name): now for (label, name), now in self._held(optimizer).items()}
        places = {each: place for place, each in self._kept.items() if place[1] != VALUE}
        known = [
            (place, now)
            for place, now in held.items()
            if place[1] != VALUE
            and place in self._kept
            and held[place[0], VALUE] == self._kept.get((place[0], VALUE), b"")
            and now != now[:4] * (len(now) // 4)  # one number many times over is of nobody
        ]
        others = [(place, now) for place, now in known if self._kept[place] != now]
        wrong = [(place, places[now]) for place, now in others if now in places]
        far = [
            (place, ("", ""))
            for place, now in others
            if now not in places and now != held[place[0], VALUE] and _is_far(now, self._kept[place])
        ]
        wrong = wrong or (far if 2 * len(far) > len(known) else [])
        if wrong:
            (label, name), (other, its) = wrong[0]
            order = self.context.clock.next_order()
            row = number_row(label, STATE_OF_ANOTHER, step, order, float(len(wrong)), module=name)
            self.rows.append(replace(row, op=its, names=(other,)))


def _name_then(label: str, then: Collection[str]) -> str:
    """Return the name that a parameter had: beside a second model of its class its own begins with a word more."""
    found = [] if label in then else [each for each in then if label.endswith(f".{each}") or each.endswith(f".{label}")]
    return found[0] if len(found) == 1 else label


def _is_far(now: bytes, then: bytes) -> bool:
    a, b = (np.frombuffer(each, dtype=np.float32) for each in (now, then))
    return a.shape == b.shape and bool(np.linalg.norm(a - b) > FAR * np.linalg.norm(b))


def _like(parameter: Tensor, state: Mapping[str, Any]) -> dict[str, Any]:
    """What of its state has an element for each of its own."""
    shape = parameter.shape
    return {str(name): each for name, each in state.items() if isinstance(each, Tensor) and each.shape == shape}
