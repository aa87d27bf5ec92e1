"""`--op-bits`: what every operator of the program reads and writes, bit for bit, from the import of torch on.

Two such recordings of one program tell the first operator that did not repeat itself (hypocenter.compare.repeats).
Workers of a DataLoader leave a file of their own.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch

from hypocenter.config import Config
from hypocenter.opbits import Event, Place, Read, Write
from hypocenter.record.bits_file import BitsWriter
from hypocenter.record.layout import rank_directory
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.tap.bits import BitsTap, digests_of, form
from hypocenter.tap.draws import Draws
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.quiet import is_on, quietly

MAX_EVENTS = 1_000_000  # of one process: about 300 MB of file


class OpBits(Observer):
    """Writes what every operator reads and writes, as digests."""

    @classmethod
    def is_wanted(cls, config: Config) -> bool:
        """Return whether it was asked for."""
        return config.op_bits

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._pid, self._is_child = os.getpid(), False
        self._updating: int | None = None  # step of the update under way
        self._held: list[Place | Event] = []  # until it is known that this process trains, and as which rank
        self._writer: BitsWriter | None = None
        self._trains, self._n_written, self._is_cut, self._told_worker = False, 0, False, False
        ops = OpContext(context.names.module_name)
        self._ops, self._tap = ops, BitsTap(ops, self._moment, self._take, self._failed)
        self._draws, self._why_cut = Draws(self._drawn), ""

    def attach(self) -> Callable[[], None]:
        """Begin to look at every operator; returns the undo."""
        if not self.context.config.op_bits or self.context.directory is None:
            return lambda: None
        undos = [self._ops.attach(), self._draws.attach()]
        self._unseen()
        self._tap.__enter__()
        os.register_at_fork(after_in_child=self._forked)

        def undo() -> None:
            if os.getpid() != self._pid:
                return  # a forked worker goes on
            self._tap.flush()
            self._tap.__exit__(None, None, None)
            for each in undos:
                each()

        return undo

    def before_backward(self, roots: Sequence[torch.Tensor]) -> None:
        """Note the roots as results; this process trains, so what is held can be written."""
        if self._is_attached():
            self._trains = True
            self._unseen()
            self._results((("loss" if len(roots) == 1 else f"loss[{i}]", root) for i, root in enumerate(roots)), "loss")

    def before_update(self, update: Update) -> None:
        """Note the gradients as results; by now parameters have names."""
        if not self._is_attached():
            return
        label = self.context.label
        self._results(((f"gradient of {label(p)}", g) for p, g in update.gradients), "grad", update.step)
        history = self._tap.history
        if history is not None:
            names = {n: label(p) for p in update.parameters for n in history.get(self._tap.storages.key_of(p), ())}
            self._open().parameters(names)
            if update.step > 0:
                self._tap.history = None
        self._updating = update.step

    def after_update(self, update: Update) -> None:
        """Note the parameters as results."""
        self._updating = None
        if self._is_attached():
            named = ((self.context.label(p), p) for p in update.parameters)
            self._results(named, "optimizer", update.step)
            self._tap.flush()

    def _results(self, named: Any, phase: str, step: int | None = None) -> None:
        found = [(name, getattr(tensor, "_local_tensor", tensor)) for name, tensor in named]  # of a DTensor
        place = (Place(), phase, self.context.clock.step if step is None else step, self.context.clock.microbatch)
        for (name, tensor), digest in zip(found, digests_of([t for _, t in found]), strict=True):
            writer, is_undefined = self._tap.storages.read(tensor)
            reads = [Read(writer, digest, is_undefined)]
            self._tap.add("result", name, place, reads=reads, writes=[Write(digest, form(tensor))])

    def _is_attached(self) -> bool:
        return self.context.config.op_bits and self.context.directory is not None

    def _moment(self) -> tuple[str, int, int]:
        clock = self.context.clock
        if self._is_child or torch.utils.data.get_worker_info() is not None:
            phase = "data"
        elif self._updating is not None:
            return "optimizer", self._updating, clock.microbatch
        elif clock.recording:
            phase = "loss"
        elif clock.microbatch:
            phase = "grad"
        else:
            phase = "data" if clock.batch else "setup"
        return phase, clock.step, clock.microbatch

    def _drawn(
        self, kind: str, name: str, generator: str, state: int | None, note: str, frame: FrameType | None
    ) -> None:
        if is_on():
            return
        with quietly():
            place = self._tap.place_of_caller(frame)
            self._tap.add(kind, name, place, generator=generator, state=state, note=note)

    def _unseen(self) -> None:
        """Note draws by a function that the program had before torch was imported; no line is known of them."""
        for generator, state in self._draws.unseen():
            place = (Place(), *self._moment())
            self._tap.add("draw", f"{generator}.*", place, generator=generator, state=state)

    def _forked(self) -> None:
        self._is_child = True
        self._held, self._writer, self._n_written, self._is_cut, self._told_worker = [], None, 0, False, False
        self._tap.forked()
        self._tap.waiting = 1  # workers are killed
        self._draws.forked()

    def _take(self, items: list[Place | Event]) -> None:
        worker = torch.utils.data.get_worker_info()
        if not self._trains and not self._is_child and worker is None:
            self._held += items
            return
        writer = self._open()
        if worker is not None and not self._told_worker:
            self._told_worker = True
            writer.worker(worker.id)
        if self._is_cut:
            return
        writer.write(items)
        self._n_written += len(items)
        if self._n_written > MAX_EVENTS:
            self._is_cut = True
            writer.cut(f"only the first {MAX_EVENTS:,} events are kept")

    def _failed(self, why: str) -> None:
        """Stop looking at operators, and say so in the recording: the program goes on."""
        self._why_cut = f"nothing after this was looked at: {why}"
        self.context.warn(f"operators are no longer digested: {why}")
        if self._writer is not None:
            self._writer.cut(self._why_cut)

    def _open(self) -> BitsWriter:
        if self._writer is None:
            assert self.context.directory is not None
            rank = self.context.rank()[0]
            process = multiprocessing.current_process().name
            self._writer = BitsWriter(rank_directory(self.context.directory, rank), process, rank)
            held, self._held = self._held, []
            self._writer.write(held)
            if self._why_cut:
                self._writer.cut(self._why_cut)
        return self._writer
