"""The same micro-batch again on the same device: its bits, those of a second time, and each op against float64."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from hypocenter.repetition import ENOUGH, LEAST
from hypocenter.replay.engine import Replayer
from hypocenter.replay.triage.bits import Bits, Difference, bits_of, difference
from hypocenter.replay.triage.ops import SECONDS, OpCheck, OpReport
from hypocenter.tap.names import NameMap
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.poison import Poison
from hypocenter.tap.tape import Microbatch
from hypocenter.tap.unwritten import UnwrittenRead, find_read

INSISTING_S = 10.0
_PLAIN = (int, float, str, bool, type(None))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
MOST_ITEMS = 64  # of a container that are looked at


@dataclass(slots=True, kw_only=True)
class Examined:
    """What came of doing a micro-batch again."""

    microbatch: int
    again: Bits
    run: Bits | None = None  # what the run itself computed, as far as it is known
    others: list[Bits] = field(
        default_factory=list
    )  # further replays: when one did not agree with the run, or nothing did
    unlike: str = ""  # why it need not have come to the bits of the run: then they are not compared
    unwritten: UnwrittenRead | None = None  # who reads memory that nobody has written: then nothing need come again
    check: OpCheck | None = None  # each op against float64
    state: tuple[str, ...] = ()  # Python state of the program that replays have changed
    n_bad_inputs: int = 0  # elements of the batch that are not finite
    seconds: float = 0.0

    @property
    def ops(self) -> OpReport:
        """What the check of each op found."""
        return self.check.report if self.check is not None else OpReport()

    @property
    def from_run(self) -> Difference:
        """How the replay differs from the run."""
        return difference(self.run, self.again) if self.run is not None else Difference()

    @property
    def distances(self) -> list[float]:
        """How far each further replay is from the first; 0 for equal bits."""
        return [difference(self.again, each).largest for each in self.others]

    @property
    def is_of_one_mind(self) -> bool:
        """Whether all replays came to the same bits."""
        return not any(self.distances)


class Again:
    """Do micro-batches of the step under way again. Parameters must still be those that the step started from."""

    def __init__(self, replayer: Replayer, names: NameMap) -> None:
        self._replayer, self._names = replayer, names

    def bits(self, microbatch: Microbatch, replayer: Replayer | None = None) -> Bits:
        """Return losses and gradients of a replay.

        Raises:
            ReplayImpossible: with the reason.
        """
        named = [(name, p) for name, p in self._names.parameters() if p.requires_grad]
        done = (replayer or self._replayer).run(microbatch, [p for _, p in named])
        return computed(list(done.values), [(n, g) for (n, _), g in zip(named, done.grads, strict=True)])

    def ops(self, microbatch: Microbatch, replayer: Replayer | None = None, *, log: bool = False) -> OpCheck:
        """Check each op of a replay against float64; keep the bits of each, if a log is wanted.

        Raises:
            ReplayImpossible: with the reason.
        """
        context = OpContext(self._names.module_name)
        check = OpCheck(context, log=log, seconds=min(SECONDS, self._replayer.deadline.left_s / 2))
        parameters = [p for _, p in self._names.parameters() if p.requires_grad]
        (replayer or self._replayer).run(microbatch, parameters, mode=check, context=context)
        return check

    def examine(self, microbatch: Microbatch, run: Bits | None, *, check_ops: bool, log: bool = False) -> Examined:
        """Replay once, several times unless the first agrees with the run; check ops if asked, or if it does not agree.

        Raises:
            ReplayImpossible: with the reason.
        """
        started = time.perf_counter()
        before, after = self._state(), dict[str, object]()
        self._replayer.on_leaving = lambda: after.update(self._state())
        try:
            again = self.bits(microbatch)
        finally:
            self._replayer.on_leaving = lambda: None
        found = Examined(microbatch=microbatch.number, again=again, run=run)
        found.unlike = self._replayer.why_other_bits(microbatch)
        if found.unlike:
            found.run = None
        agrees = bool(found.from_run.relative) and not found.from_run.names
        if not agrees and not found.unlike:
            self.measure(found, microbatch)
            if found.from_run.names and found.is_of_one_mind:
                found.unwritten = self._unwritten(microbatch)
            if found.unwritten is not None:
                found.unlike, found.run = "it reads memory that nobody has written", None
        if check_ops or not agrees:
            found.check = self.ops(microbatch, log=log)
        found.state = changed(before, after)
        found.n_bad_inputs = sum(
            int((~torch.isfinite(t)).sum()) for t in self._replayer.batch_tensors(microbatch) if t.is_floating_point()
        )
        found.seconds = time.perf_counter() - started
        return found

    def _unwritten(self, microbatch: Microbatch) -> UnwrittenRead | None:
        context = OpContext(self._names.module_name)
        parameters = [p for _, p in self._names.parameters() if p.requires_grad]

        def is_finite(mode: Poison | None = None) -> bool:
            return self._replayer.run(microbatch, parameters, mode=mode, context=context).finite

        return find_read(is_finite, partial(Poison, context)) if is_finite() else None

    def measure(self, found: Examined, microbatch: Microbatch, replayer: Replayer | None = None) -> None:
        """Replay `LEAST` times, to know by how much replays differ; put the one closest to the run first."""
        while 1 + len(found.others) < LEAST:
            found.others.append(self.bits(microbatch, replayer))
        if found.run is not None:
            run = found.run
            every = sorted([found.again, *found.others], key=lambda bits: len(difference(run, bits).names))
            found.again, found.others = every[0], every[1:]

    def insist(self, found: Examined, microbatch: Microbatch) -> None:
        """Replay on where the run differs from replays that all agree, until one does not, or often enough."""
        started = time.perf_counter()
        while (
            found.from_run.names
            and found.is_of_one_mind
            and 1 + len(found.others) < ENOUGH
            and time.perf_counter() - started < INSISTING_S
        ):
            found.others.append(self.bits(microbatch))

    def _state(self) -> dict[str, object]:
        modules = [(name, module) for root in self._names.roots() for name, module in root.named_modules()]
        return own_state(modules, self._names.parameters())


def computed(values: list[torch.Tensor], grads: list[tuple[str, torch.Tensor | None]]) -> Bits:
    """Return the bits of losses and gradients; the losses are named `loss`, `loss[1]`, ..."""
    losses = [(f"loss[{i}]" if i else "loss", v) for i, v in enumerate(values)]
    return bits_of([*losses, *((name, g) for name, g in grads if g is not None)])


def own_state(
    modules: Sequence[tuple[str, torch.nn.Module]], parameters: Sequence[tuple[str, torch.Tensor]]
) -> dict[str, object]:
    """Return numbers, texts and sizes of containers that modules, hooks and forwards keep, by where they are."""
    found: dict[str, object] = {}
    for name, module in modules:
        _look(f"{name or type(module).__name__}", module.__dict__, found)
        _look_at_function(f"{name}.forward", module.__dict__.get("forward"), found)
        for table in _HOOKS:
            for number, hook in enumerate(list(getattr(module, table, {}).values())):
                _look_at_function(f"{name}.{table}[{number}]", hook, found)
    for name, parameter in parameters:
        for number, hook in enumerate(list((getattr(parameter, "_backward_hooks", None) or {}).values())):
            _look_at_function(f"{name} hook[{number}]", hook, found)
    return found


def changed(before: dict[str, object], after: dict[str, object]) -> tuple[str, ...]:
    """Return the places where something is not as it was."""
    return tuple(name for name, value in before.items() if name in after and after[name] != value)


def _look(where: str, table: Any, found: dict[str, object]) -> None:
    for key, value in list(table.items()):
        if isinstance(key, str) and not key.startswith("_") and key != "training":
            _note(f"{where}.{key}", value, found)


def _look_at_function(where: str, function: Callable[..., Any] | None, found: dict[str, object]) -> None:
    if function is None:
        return
    function = getattr(function, "func", function)  # functools.partial
    owner = getattr(function, "__self__", None)
    if owner is not None and not isinstance(owner, torch.nn.Module):
        _look(where, getattr(owner, "__dict__", {}), found)
    elif not hasattr(function, "__code__"):
        _look(where, getattr(function, "__dict__", {}), found)
    for number, cell in enumerate(getattr(function, "__closure__", None) or ()):
        try:
            _note(f"{where}[{number}]", cell.cell_contents, found)
        except ValueError:  # an empty cell
            continue


def _note(where: str, value: object, found: dict[str, object]) -> None:
    if isinstance(value, _PLAIN):
        found[where] = value if value == value else "nan"
    elif isinstance(value, random.Random):
        found[where] = hash(value.getstate())
    elif isinstance(value, torch.Generator):
        found[where] = hash(value.get_state().numpy().tobytes())
    elif isinstance(value, (list, tuple, set, dict)):
        found[where] = tuple(_items(value))


def _items(value: Any) -> Iterator[object]:
    yield len(value)
    for item in list(value)[:MOST_ITEMS]:
        held = (item, value[item]) if isinstance(value, dict) else (item,)
        yield from (part for part in held if isinstance(part, _PLAIN) and part == part)
