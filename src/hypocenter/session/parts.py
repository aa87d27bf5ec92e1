"""Everything that a session consists of, made and attached in the order in which one needs the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch

from hypocenter.config import Config
from hypocenter.record.layout import rank_directory
from hypocenter.record.whereabouts import WherePhase
from hypocenter.replay.case import BUDGETS
from hypocenter.replay.deadline import ALONE_S, Deadline
from hypocenter.replay.engine import Replayer
from hypocenter.replay.preparation import Preparation
from hypocenter.session import observers
from hypocenter.session.agreement import Council
from hypocenter.session.communication import Communication
from hypocenter.session.crash import Coroner
from hypocenter.session.events import Observers
from hypocenter.session.failures import Failures
from hypocenter.session.frameworks import Frameworks
from hypocenter.session.guard import Warnings
from hypocenter.session.imposed.in_training import InTraining
from hypocenter.session.levels import Levels
from hypocenter.session.live_trace import LiveTrace
from hypocenter.session.observer import Context
from hypocenter.session.output import Output
from hypocenter.session.parameter_check import ParameterCheck
from hypocenter.session.place import PlaceKeeper
from hypocenter.session.rank import launched_rank, rank_and_world_size, rank_of_group
from hypocenter.session.replay_rows import ReplayRows
from hypocenter.session.resumption import Resumption
from hypocenter.session.sentinel import Sentinel
from hypocenter.session.taken import TakenGradients
from hypocenter.session.torch_framework import TorchFramework
from hypocenter.session.whereabouts import WhereaboutsKeeper
from hypocenter.tap.clock import Clock
from hypocenter.tap.foreign_scalers import ForeignScalers
from hypocenter.tap.frameworks.door import Door
from hypocenter.tap.loader_batches import LoaderBatches
from hypocenter.tap.names import NameMap
from hypocenter.tap.optimizers import Optimizers
from hypocenter.tap.received import Received
from hypocenter.tap.roots import RootTap
from hypocenter.tap.tape import Tape
from hypocenter.tap.updates import UpdateListener, UpdateTap


class Listener(UpdateListener, Protocol):
    """What is told of what happens in training (the session)."""

    def on_root(self, module: torch.nn.Module) -> None: ...
    def on_begin(self, training: bool) -> None: ...
    def replaying(self) -> contextlib.AbstractContextManager[None]: ...
    def unwatched(self) -> contextlib.AbstractContextManager[None]: ...


class Parts:
    """The parts of one session, not attached yet.

    Args:
        config: frozen options.
        directory: the run directory.
        owns_run: whether run.json is ours to write (`watch`) or the launcher's (`hypocenter run`).
        listener: who is told of module calls, backward and updates.
    """

    def __init__(
        self, config: Config, directory: Path, listener: Listener, *, owns_run: bool, command: tuple[str, ...]
    ) -> None:
        self.config = config
        self._launched: tuple[int, int] | None = None
        self._rank: tuple[int, int] | None = None  # within one event, in which no process group comes or goes
        self.warn = Warnings()
        self.imposed: dict[str, str] = {}
        self.names = NameMap()
        self.clock = Clock()
        self.tape = Tape(config.keep_mb << 20)
        self.taken = TakenGradients(self.tape)
        self.roots = RootTap(self.tape, on_root=listener.on_root, on_begin=listener.on_begin, fail=self.warn)
        self._unwatched = listener.unwatched
        self.coroner = Coroner(
            names=self.names, clock=self.clock, rank=self.rank,
            folder=lambda: rank_directory(directory, self.rank()[0]) / "bundles",
        )  # fmt: skip
        self.where = WhereaboutsKeeper(directory, self.clock, self.names, self.rank, self.warn, self._examine)
        self.roots.on_end = lambda training: self.where.note("loss" if training else "outside")
        self.optimizers = Optimizers()
        self.updates = UpdateTap(listener)
        self.scalers = ForeignScalers(self.updates.scaled_step)
        self.sentinel = Sentinel(self.names, self.clock)
        self.place = PlaceKeeper(directory, self.warn, self.names, self.rank)
        self.levels = Levels(
            config, self.names, self.clock, self.warn, lambda: rank_directory(directory, self.rank()[0]),
            self.place.current,
        )  # fmt: skip
        self.imposing = InTraining(
            config, directory, self.names, rank=self.rank, place=self.place.current, warn=self.warn, told=self.imposed
        )
        self.replay_rows = ReplayRows(config, self.names, self.warn)
        self.live_trace = LiveTrace(self.names, self.warn)
        self.loaded = LoaderBatches(self.roots.user_code.quiet)
        self.replayer = Replayer(
            self.tape, listener.replaying, lambda tensor: self.names.param_name(tensor) is not None,
            Deadline(max(ALONE_S, BUDGETS[config.cure].seconds)),
        )  # fmt: skip
        preparation = Preparation(self.tape, self.roots.prelude, self.replayer, self.names, self.loaded.of)
        self.replayer.is_constant = preparation.is_constant
        self.failures = Failures(
            config,
            self.names,
            self.replayer,
            preparation=preparation,
            folder=lambda: rank_directory(directory, self.rank()[0]) / "bundles",
            rows=self.replay_rows,
            live=self.live_trace,
            warn=self.warn,
        )
        self.frameworks = Frameworks(
            Door(
                add_root=self.names.add_root,
                scaled_step=self.updates.scaled_step,
                plain_step=self.updates.plain_step,
                warn=self.warn,
                begin_chunk=self.clock.begin_chunk,
                forget=self._forget_trial,
            )
        )
        self.resumption = Resumption(self.clock, self.warn)
        code = self.roots.user_code
        self.communication = Communication(self.names, lambda: self.roots.is_inside or code.is_in_function, self.warn)
        self.council = Council(is_wanted=config.agree, timeout_s=config.agree_timeout_s, warn=self.warn)
        context = Context(
            config=config,
            names=self.names,
            names_of=self.names.param_names,
            clock=self.clock,
            tape=self.tape,
            prelude=self.roots.prelude,
            replayer=self.replayer,
            loaded=self.loaded.of,
            label=self.sentinel.label,
            rank=self.rank,
            place=self.place.current,
            warn=self.warn,
            ride=self.sentinel.ride,
            handed=lambda: self.loaded.last,
            begun=self.loaded.begun,
            framework=TorchFramework(self.sentinel.ride),
            council=self.council,
            recomputed=self.roots.recomputed,
            beginning=self.roots.beginning,
            after_calls=self.roots.after_calls,
            writer_of=self.roots.user_code.writer_of,
            self_averages=self.roots.user_code.self_averages,
            optimizers=self.optimizers.all,
            reads_parameters=self.roots.reads_parameters,
            take_loop=self.roots.user_code.take_loop,
            directory=directory,
        )
        self.audits, self.local = context.audits, context.local
        self.observers = Observers(observers.OBSERVERS, context, self.warn)
        self.parameter_check = ParameterCheck(self.sentinel, self.failures, self.rank, self.clock.forget)
        self.output = Output(
            config, directory, rank_and_world_size, self.warn, owns_run=owns_run, command=command,
            versions={"torch": torch.__version__}, imposed=self.imposed,
        )  # fmt: skip

    def attach(self) -> list[Callable[[], None]]:
        """Attach all parts; return what takes each of them off again, in the order in which they were attached."""
        self.last_words = self.where.attach()
        undos = [self.last_words]
        attach = (
            self.imposing.attach_first,
            self.place.attach,
            self.roots.attach,
            self.loaded.attach,
            self.scalers.attach,  # before updates: a hook may only take itself out while it is the last to run
            self.updates.attach,
            self.levels.attach,
            self.frameworks.attach,
            self.observers.attach,
            self.communication.attach,
            Received(self.roots, self.names, self.warn).attach,
            self.imposing.attach_last,
        )
        try:
            for each in attach:
                undos.append(each())  # noqa: PERF401  (what is on must be known when the next one fails)
        except BaseException:  # what was asked for is refused: the program may go on without us
            for undo in undos:
                undo()
            raise
        return [*undos, self.names.close]

    def _examine(self, error: BaseException, phase: WherePhase) -> None:
        """Find out what there is to know of an exception that ends the program."""
        self.roots.suspend()
        with self._unwatched():
            self.tape.close_at(self.coroner.examine(error, phase), self.clock.microbatch, self.clock.batch)

    def rank(self) -> tuple[int, int]:
        """Return this rank and the number of ranks, as the launcher said in this step at the latest."""
        return self._rank or rank_of_group() or self._launched or self._look_up()

    def begin_event(self) -> None:
        """Look up the rank again: the program has done something, and its process groups may be others now."""
        self._rank = rank_of_group() or self._launched or self._look_up()

    def _look_up(self) -> tuple[int, int]:
        self._launched = launched_rank()
        return self._launched

    def _forget_trial(self) -> None:
        self.levels.forget()
        self.taken.clear()

    def begin_step(self) -> None:
        """Renew the time limit of replays, and in the first steps ask the environment for the rank again.

        A program may set its rank there before it begins to train.
        """
        self._rank = None
        self.replayer.deadline.renew()
        if self.clock.step < 2:
            self._launched = None
