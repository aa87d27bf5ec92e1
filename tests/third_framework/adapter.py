"""The session of a program that trains with mininet: `with watch(out=...):` around the training loop."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import mininet as mn
import numpy as np
from listening import Hearing, Listener, Names, Taps, things
from replaying import Replays, Tape

from hypocenter import schedule
from hypocenter.config import Config
from hypocenter.nouns import LEVELS, Reading, StepRecord
from hypocenter.record.layout import rank_directory
from hypocenter.session.check import Check, Judge, norm_reading
from hypocenter.session.events import Observed, Observers, Update
from hypocenter.session.failed import Failed
from hypocenter.session.framework import SAMPLE, Undo
from hypocenter.session.guard import Listening, guarded
from hypocenter.session.handle import Handle
from hypocenter.session.host_arrays import HostArrays, strided
from hypocenter.session.observers.between import Between
from hypocenter.session.observers.culprit import Culprit
from hypocenter.session.observers.frozen_state import FrozenState
from hypocenter.session.observers.hyperparameters import Hyperparameters
from hypocenter.session.observers.schedules import Schedules
from hypocenter.session.observers.updates import LostUpdates
from hypocenter.session.observers.use import Use
from hypocenter.session.output import Output
from hypocenter.session.place_keeper import PlaceKeeper
from hypocenter.session.replayed_failures import ReplayedFailures
from hypocenter.session.run_directory import run_directory, watch_options
from hypocenter.session.scalars import scalar_rows
from hypocenter.session.step_times import StepTimes
from hypocenter.summary.reducers.numpy import summarize
from hypocenter.tap.clock import Clock
from hypocenter.tap.wanted import is_wanted

OBSERVERS = [Culprit, Schedules, LostUpdates, FrozenState, Hyperparameters, Between, Use]
RANK = functools.partial(tuple, (0, 1))  # of one process
_running: list[Any] = []


def watch(**options: Any) -> Handle:
    """Watch training from here on; options are those of `hypocenter.watch`."""
    config = watch_options(options)
    return Handle(Session(config, run_directory(config, *RANK())), _running, rank=RANK)


class MininetArrays(HostArrays):
    """See hypocenter.session.framework. mininet's words are torch's."""

    def schedules(self, tell: Callable[[Any, Any], None], fail: Callable[[str], None]) -> Undo:
        """mininet has none."""
        return lambda: None

    def optimizer(self, optimizer: Any) -> mn.Optimizer | None:
        """As it is."""
        return optimizer

    def state_of(self, optimizer: mn.Optimizer, parameter: mn.Parameter) -> dict[str, Any]:
        """As it is."""
        return optimizer.state.get(parameter, {})

    def family_of(self, optimizer: mn.Optimizer) -> str:
        """Not of subclasses: they may do anything."""
        return type(optimizer).__name__ if type(optimizer) in (mn.SGD, mn.Adam) else ""

    def with_gradients(self, update: Update, parameters: Iterable[mn.Parameter]) -> list[mn.Parameter]:
        return [parameter for parameter in parameters if parameter.grad is not None]

    def gradient(self, update: Update, parameter: mn.Parameter) -> mn.Array | None:
        """As it is now."""
        return None if parameter.grad is None else self.sample(parameter.grad)

    def sample(self, tensor: Any, size: int = SAMPLE) -> mn.Array | None:
        """A view."""
        array = tensor.data if isinstance(tensor, mn.Tensor) else tensor
        return strided(array, size) if array.size else None

    def rounded(self, value: float, dtype: Any) -> float:
        """As NumPy casts."""
        return float(dtype.type(value))

    def is_tensor(self, value: object) -> bool:
        """Parameters are tensors; gradients and state are arrays."""
        return isinstance(value, (mn.Tensor, np.ndarray))

    def is_low(self, value: object) -> bool:
        """float16."""
        return self.is_tensor(value) and value.dtype == np.float16


class Session(Listening, Listener):
    """Hears training, checks and records each step, has failed ones replayed.

    Args:
        config: frozen options.
        directory: the run directory.
    """

    def __init__(self, config: Config, directory: Path) -> None:
        Listening.__init__(self)
        Listener.__init__(self, Names())
        self.config, self.directory = config, directory
        self.taps, self.clock, self.tape, self._times = Taps(), Clock(), Tape(config.keep_mb << 20), StepTimes()
        self._rank_file = PlaceKeeper(directory, "mininet", RANK, self.warn)
        context = Observed(
            config=config,
            clock=self.clock,
            names=self.names,
            tape=self.tape,
            label=self.names.label,
            rank=RANK,
            place=self._rank_file.current,
            warn=self.warn,
            framework=MininetArrays(),
            optimizers=list,
        )
        self._observers = Observers(OBSERVERS, context, self.warn)
        folder = functools.partial(rank_directory, directory, 0)
        investigate = Replays(self.names, self.taps).investigate
        self._failures = ReplayedFailures(context, folder, investigate, lambda *_: ("cannot-tell", []))
        command, versions = tuple(sys.argv), {"mininet": "1"}
        self._output = Output(config, directory, RANK, self.warn, owns_run=True, command=command, versions=versions)
        self._judge = Judge(lambda gradient: bool(np.isfinite(gradient).all()), functools.partial(_norm, np.float64))
        self._level, self._is_due = LEVELS.index(config.level), schedule.parse(config.schedule)
        self.is_placing = config.level == "ops"
        self._rows: list[Reading] = []
        self._calls: Counter[str] = Counter()  # of modules in this micro-batch
        self._made_by: dict[mn.Node, list[dict[str, Any]]] = {}  # where modules' outputs were made
        self._n_healthy, self._is_poisoned = 0, False

    def attach(self) -> None:
        """Start listening."""
        self._undo = [self.taps.attach(self), self._observers.attach()]

    def close(self) -> None:
        """Write the rest, let go."""
        if self._undo:
            self._end()
            self._detach()
            self._output.close()
            self.is_off = True

    @guarded
    def _end(self) -> None:
        self._rows += self._observers.at_end()
        check = Check(losses=[microbatch.loss_value for microbatch in self.tape.microbatches])
        if not check.loss_finite:  # the program gave up on it
            self._write(check, self.clock.step, None, self._investigated(check, self.clock.step, None))
        elif self._rows:
            self._output.write(self._rows, None)

    # what is heard

    def call(self, module: mn.Module, *args: Any, **kwargs: Any) -> Hearing:
        """Outermost calls go on the tape; from level modules on all are read."""
        if module not in self.names.modules:
            self.names.add_root(module)
            self._observers.tell("on_root", module)
        site = self.names.modules[module]
        is_read = mn.grad_mode[0] and self._level >= LEVELS.index("modules") and self._is_due(self.clock.step)
        is_read = is_read and is_wanted((site,), self.config)
        where = {"site": site, "module": type(module).__name__, "call": self._calls[site]}
        self._calls[site] += 1
        for i, tensor in enumerate(things(args, mn.Tensor) if is_read else ()):
            self._read(tensor.data, phase="forward", port=f"in[{i}]", **where)
        out = yield from super().call(module)
        for i, tensor in enumerate(things(out, mn.Tensor) if is_read else ()):
            self._read(tensor.data, phase="forward", port=f"out[{i}]", **where)
            self._made_by.setdefault(tensor.node, []).append({"port": f"grad_out[{i}]", **where})
        if mn.grad_mode[0] and not self.modules:
            self.tape.add(module, args, kwargs, out, self.here)

    def apply(self, op: mn.Op, *inputs: Any, **options: Any) -> Hearing:
        """Operators outside of modules go on the tape."""
        out = yield from super().apply(op)
        if mn.grad_mode[0] and not self.modules:
            self.tape.add(op, inputs, options, out, self.here)

    def compute(self, op: mn.Op, *arrays: Any, **options: Any) -> Hearing:
        """At level ops each operator is read."""
        out, here = (yield), self.here
        if self.is_placing and mn.grad_mode[0]:
            where = {"phase": here.phase, "site": here.site, "module": here.module, "port": "out[0]"}
            self._read(out, **where, op=op.name, source=here.source())

    def backward(self, root: mn.Tensor) -> Hearing:
        """A micro-batch."""
        self.tape.close(root, self.clock.microbatch)
        self._observers.tell("before_backward", [root])
        yield
        self._observers.tell("after_backward")
        self.clock.end_microbatch()
        self._calls, self._made_by = Counter(), {}

    def differentiate(self, node: mn.Node, gradient: mn.Array) -> Hearing:
        """Gradients of modules' outputs are read."""
        for where in self._made_by.get(node, ()):
            self._read(gradient, phase="backward", **where)
        return (yield from super().differentiate(node, gradient))

    def update(self, optimizer: mn.Optimizer) -> Hearing:
        """An optimizer steps."""
        with self._times:
            step, check = self.clock.begin_update(id(optimizer)), self._checked(optimizer)
            finding = self._investigated(check, step, optimizer)
            update = Update(
                step=step,
                optimizer=optimizer,
                parameters=optimizer.parameters(),
                gradients=[(p, p.grad) for p in optimizer.parameters()],
                microbatches=self.tape.microbatches,
                check=check,
            )
            self._rows += self._observers.before_update(update)
        yield
        with self._times:
            self._rows += self._observers.after_update(update)
            if not check.is_finite:  # then what fails from now on is a consequence
                self._is_poisoned = not all(np.isfinite(p.data).all() for p in update.parameters)
        self._write(check, step, optimizer, finding)

    def _read(self, array: mn.Array, **where: Any) -> None:
        with self._times:
            summary = summarize(array, histogram=self.config.histogram, sketch=self.config.sketch)
            self._rows.append(
                Reading(
                    step=self.clock.step,
                    microbatch=self.clock.microbatch,
                    order=self.clock.next_order(),
                    dtype=array.dtype.name,
                    shape=array.shape,
                    summary=summary,
                    **where,
                )
            )

    def _checked(self, optimizer: mn.Optimizer) -> Check:
        """Losses of the micro-batches and norms of the gradients, with their rows."""
        check = Check(losses=[microbatch.loss_value for microbatch in self.tape.microbatches])
        held = [(p, p.grad) for p in optimizer.parameters()]
        names, norms = [self.names.label(p) for p, _ in held], [_norm(np.float32, g) for _, g in held]
        self._judge.add(check, held, names, norms)
        for (p, _), (name, norm) in zip(held, check.grad_norms.items(), strict=True):
            order, is_bad = self.clock.next_order(), name in check.bad_params
            known = {"n": p.data.size, "dtype": p.dtype.name, "shape": p.shape}
            self._rows.append(norm_reading(name, norm, self.clock.step_now, order, is_bad=is_bad, **known))
        return check

    def _investigated(self, check: Check, step: int, optimizer: mn.Optimizer | None) -> str:
        """The id of the evidence, if the step has failed and that is no consequence."""
        if check.is_finite:
            self._n_healthy += 1
        if check.is_finite or self._is_poisoned:
            return ""
        failed = Failed(
            step=step,
            check=check,
            bad_params=tuple(check.bad_params),
            microbatches=tuple(self.tape.microbatches),
            optimizer=optimizer,
            healthy_steps=self._n_healthy,
        )
        return self._failures.investigate(failed)

    def _write(self, check: Check, step: int, optimizer: mn.Optimizer | None, finding: str) -> None:
        norm, lr = check.total_norm, None if optimizer is None else optimizer.param_groups[0]["lr"]
        order = self.clock.next_order
        self._rows += scalar_rows(check, step, scale=None, norm=norm, lr=lr, scaler=None, next_order=order)
        record = StepRecord(
            step=step,
            n_microbatches=len(self.tape.microbatches),
            loss=check.mean_loss(None),
            grad_norm=norm,
            lr=lr,
            skipped=optimizer is None,
            n_bad_grads=len(check.bad_params),
            finding=finding,
            **self._times.end_step(),
        )
        self._rank_file.keep()
        self._output.write(self._rows, record)
        self._rows = []
        self.tape.clear()
        self.clock.end_update()


def _norm(dtype: Any, gradient: mn.Array) -> float:
    with np.errstate(all="ignore"):
        return float(np.linalg.norm(gradient.astype(dtype)))
