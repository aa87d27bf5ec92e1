"""Keeps the whereabouts of this rank true: where it is in its step, in which collective, and that it lives.

Each change is one `pwrite` of half a kilobyte, about a microsecond and a half. A thread of ours gives a sign of life
twice a second, and looks at the stack of a rank that has not moved since: what hangs names its line. On a disk where a
write takes long, changes are written less often, so that they take about a hundredth of the time.
"""

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports]  (of C: it has no stub)
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from hypocenter.record.layout import rank_directory
from hypocenter.record.whereabouts import (
    CALL_STATES,
    COUNT,
    ENDED,
    IN_THREAD,
    MAX_GROUPS,
    NOT_RECORDING,
    OWN_SIGTERM,
    PHASES,
    RAISED,
    SELDOM,
    SLOT_CALL,
    WHEREABOUTS_FILE,
    WherePhase,
    group_key,
    packed_ranks,
)
from hypocenter.record.whereabouts_file import WhereaboutsFile
from hypocenter.session.crash import phase_of
from hypocenter.session.last_words import LastWords, innermost, last_error, one_line, user_place
from hypocenter.tap.call_site import running_module
from hypocenter.tap.clock import Clock
from hypocenter.tap.collectives import Call, Listener, listen
from hypocenter.tap.names import NameMap
from hypocenter.tap.quiet import quietly
from hypocenter.tap.source import user_frame

BEAT_S = 0.5  # between two signs of life
SLOW_NS = 50_000  # a write that takes longer is slow
MANY_SLOW = 3  # slow writes in a row: it is the disk, not the scheduler of a busy machine
SPARING = 100  # times the cost of a slow write: until the next one

_handler_of: Callable[[int], Any] = _signal.getsignal  # that of `signal` makes an enum of each answer
_INDEX = {phase: PHASES.index(phase) for phase in PHASES}
_INSIDE, _LEFT, _FAILED = (1 + CALL_STATES.index(state) for state in ("inside", "left", "failed"))
_TRAINS = ("backward", "check", "update")  # an evaluation does none of it
_POINT_TO_POINT = frozenset({"send", "recv"})


class WhereaboutsKeeper(Listener):
    """Writes `rank-<rank>/whereabouts`.

    The file is made at the first thing that is noted, in a program of one process when it trains or dies: a launcher's
    own process, which does nothing, has none. A thread of ours tells only of ranks that others may wait for.

    Args:
        died: told of an exception that ends the process, and of the phase that it came from.
    """

    def __init__(
        self, directory: Path, clock: Clock, names: NameMap, rank: Callable[[], tuple[int, int]],
        warn: Callable[[str], None], died: Callable[[BaseException, WherePhase], None] = lambda *_: None,
    ) -> None:  # fmt: skip
        self._directory, self._clock, self._names, self._rank, self._warn = directory, clock, names, rank, warn
        self._died = died
        self._pid = os.getpid()
        self._file: WhereaboutsFile | None = None
        self._is_over = self._has_exit = False
        self._words = LastWords(self._raised)
        self._stop = threading.Event()
        self._thread = 0  # that trains
        self.phase: WherePhase = "starting"
        self._where = (0, 0, 0)  # step, micro-batch, phase
        self._site_of_phase = b""
        self._flags = 0
        self._call: tuple[Any, ...] = (0, 0, 0, 0, b"", b"", b"")  # state, seq, entered, left, op, group, ranks
        self._known: dict[tuple[str, str, str, int | None], tuple[bytes, bytes, bytes, int]] = {}
        self._places: dict[int, int] = {}  # group's key -> its place among the counts
        self._counts = bytearray(COUNT.size * MAX_GROUPS)
        self._wait_until = self._n_slow = self._least_ns = 0
        self._time_ns = time.monotonic_ns
        self._late: tuple[tuple[int, ...], bytes] | None = None
        self._packed = b""  # the call and the site, as the file has them; empty: to be packed anew

    # life

    def attach(self) -> Callable[[], None]:
        """Listen to collectives, to the start of torch.distributed and to exceptions; returns the undo."""
        undos = [self._words.attach(), _around_init(self)]
        if torch.distributed.is_available():
            undos.append(listen(self, names=self._names, fail=self._warn))

        def undo() -> None:
            for each in reversed(undos):
                each()
            self._let_go()

        return undo

    def note(self, phase: WherePhase, site: str = "") -> None:
        """Write down that the rank has come to another phase of its step. Never raises."""
        self.phase = phase
        if self._file is None and not (self._is_worth_a_file(phase) and self._opened()):
            return
        if phase == "outside":
            own = _handler_of(signal.SIGTERM) != signal.SIG_DFL
            self._flags = (self._flags & ~OWN_SIGTERM) | (OWN_SIGTERM if own else 0)
        self._thread = threading.get_ident()
        clock = self._clock
        self._where = clock.step_now, clock.microbatch, _INDEX[phase]
        if site or self._site_of_phase:
            self._site_of_phase, self._packed = site.encode("utf-8", "replace"), b""
        now, file = self._time_ns(), self._file
        if file is None or self._is_over or not self._packed or now < self._wait_until:
            self._write()
            return
        self._late = None  # what `_write` does, of nearly all: seven times a step
        try:
            file.slot((now, time.time_ns(), *self._where, self._flags), self._packed)
            if self._time_ns() - now > SLOW_NS or self._n_slow:
                self._wrote(now)
        except OSError as error:
            self._give_up(error)

    @contextlib.contextmanager
    def during(self, phase: WherePhase) -> Generator[None, None, None]:
        """Note another phase for the time of this context."""
        before = self.phase
        self.note(phase)
        try:
            yield
        finally:
            self.note(before)

    def not_recording(self) -> None:
        """Write down that this rank's recording was given up: what it does from here on is not recorded."""
        if not self._flags & NOT_RECORDING:
            self._flags |= NOT_RECORDING
            if self._file is not None:
                self._write()

    def end(self) -> None:
        """Write down that the program has ended, or which exception, of which nobody told us, has ended it."""
        if self._file is None or self._pid != os.getpid():
            return
        error = last_error()
        if error is not None and not self._has_exit:
            self._raised(error, in_thread=False)
        if not self._has_exit:
            self._end(ENDED, "", "")

    # collectives

    def before(self, call: Call) -> None:
        """Write down that a collective begins: other ranks may wait for this one in it, or this one for them."""
        if self._file is None and not self._opened():
            return
        op, group, ranks, key = self._known.get((call.group, call.op, call.reduce, call.peer)) or self._describe(call)
        if call.op not in _POINT_TO_POINT:
            COUNT.pack_into(self._counts, self._place(key), key, call.seq + 1)
        self._call, self._packed = (_INSIDE, call.seq, time.monotonic_ns(), 0, op, group, ranks), b""
        self._write()

    def after(self, call: Call) -> None:
        """Write down that the collective has returned."""
        self._leave(_LEFT)

    def failed(self, call: Call, error: BaseException) -> None:
        """Write down that the collective has raised an error."""
        self._leave(_FAILED)

    def _leave(self, state: int) -> None:
        if self._file is not None:
            _, seq, entered, _, op, group, ranks = self._call
            self._call, self._packed = (state, seq, entered, time.monotonic_ns(), op, group, ranks), b""
            self._write()

    def _describe(self, call: Call) -> tuple[bytes, bytes, bytes, int]:
        op = f"{call.op}.{call.reduce}" if call.reduce else call.op
        is_pair = call.op in _POINT_TO_POINT
        ranks = tuple(call.ranks) if not is_pair else () if call.peer is None else (call.peer,)
        known = op.encode(), call.group.encode(), packed_ranks(ranks), group_key(call.group, tuple(call.ranks))
        self._known[call.group, call.op, call.reduce, call.peer] = known
        return known

    def _place(self, key: int) -> int:
        place = self._places.get(key)
        if place is None:
            if len(self._places) >= MAX_GROUPS:
                oldest = next(iter(self._places))
                self._places[key] = self._places.pop(oldest)
            else:
                self._places[key] = COUNT.size * len(self._places)
            place = self._places[key]
        return place

    # the file

    def _is_worth_a_file(self, phase: WherePhase) -> bool:
        """Return whether this process is a rank: of a job of one process only what trains is."""
        return self._rank()[1] > 1 or self._clock.recording or phase in _TRAINS

    def _opened(self) -> bool:
        rank, world_size = self._rank()
        if self._is_over or self._pid != os.getpid():
            return False
        try:
            attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") or 0)
            folder = rank_directory(self._directory, rank)
            self._file = WhereaboutsFile(folder, rank=rank, world_size=world_size, attempt=attempt)
            self._words.keep_stack_in(self._file.stack_file)
        except (OSError, ValueError) as error:
            self._give_up(error)
            return False
        self._thread = threading.get_ident()
        if world_size > 1:
            threading.Thread(target=self._live, args=(self._file,), name="hypocenter-whereabouts", daemon=True).start()
        return True

    def _write(self) -> None:
        file, now = self._file, self._time_ns()
        if file is None or self._is_over:
            return
        if not self._packed:
            *numbers, op, group, ranks = self._call
            self._packed = SLOT_CALL.pack(*numbers, self._counts, self._site_of_phase, op, group, ranks)
        moves = now, time.time_ns(), *self._where, self._flags
        if now < self._wait_until:
            self._late = moves, self._packed
            return
        self._late = None
        try:
            file.slot(moves, self._packed)
            self._wrote(now)
        except OSError as error:
            self._give_up(error)

    def _wrote(self, began: int) -> None:
        """Count slow writes, and write less often where there are many: what is written then says so.

        What a write costs is the least of them: others have waited for a processor.
        """
        cost = self._time_ns() - began
        if cost <= SLOW_NS:
            self._n_slow, self._flags = 0, self._flags & ~SELDOM
            return
        self._least_ns = min(self._least_ns, cost) if self._n_slow else cost
        self._n_slow += 1
        if self._n_slow >= MANY_SLOW:
            self._wait_until = began + SPARING * self._least_ns
            if not self._flags & SELDOM and self._file is not None:
                self._flags |= SELDOM
                self._file.slot((began, time.time_ns(), *self._where, self._flags), self._packed)

    def _live(self, file: WhereaboutsFile) -> None:
        """Give signs of life, make late writes, and look at a rank that does not move; in a thread of our own."""
        seen, looked = -1, -1
        try:
            while True:
                late, self._late = self._late, None
                if late is not None:
                    file.slot(*late)
                file.beat()
                if file.generation == seen != looked:
                    looked = seen
                    file.look(seen, *self._look())
                seen = file.generation
                if self._stop.wait(BEAT_S):
                    return
        except Exception as error:
            self._give_up(error)

    def _look(self) -> tuple[str, str]:
        """Return the module and the line that the training thread is in."""
        frame = sys._current_frames().get(self._thread)
        own = user_frame(frame)
        return self._site(frame), f"{own.f_code.co_filename}:{own.f_lineno}"[-160:] if own is not None else ""

    def _raised(self, error: BaseException, *, in_thread: bool) -> None:
        """Write down an exception that nobody caught."""
        if self._pid != os.getpid() or self._has_exit:
            return
        if self._file is None and not (self._is_rank() and self._opened()):
            return
        if not in_thread:
            with contextlib.suppress(Exception), quietly():
                self.note(phase_of(error, self.phase))
                self._note_place(error)
                self._end(RAISED, type(error).__name__, one_line(error))  # what follows may take a while, or fail
                self._died(error, self.phase)
            return
        self._end(IN_THREAD, type(error).__name__, one_line(error))

    def _is_rank(self) -> bool:
        """Return whether this process, which has not trained yet, is one of the ranks, and no helper of theirs."""
        if os.environ.get("RANK", "").isdigit():
            return True  # torchrun's own process has none
        is_first = not rank_directory(self._directory, 0).joinpath(WHEREABOUTS_FILE).exists()
        return self._rank()[1] == 1 and is_first and multiprocessing.parent_process() is None

    def _note_place(self, error: BaseException) -> None:
        """Write down the module and the line that the exception came from."""
        place, file = user_place(error.__traceback__), self._file
        if file is None or error.__traceback__ is None:
            return
        line = "" if place is None else f"{place[0].f_code.co_filename}:{place[1]}"[-160:]
        file.look(file.generation, self._site(innermost(error.__traceback__)), line)

    def _site(self, frame: FrameType | None) -> str:
        module = running_module(frame) if frame is not None else None
        return self._names.module_name(module) or "" if module is not None else ""

    def _end(self, kind: int, name: str, text: str) -> None:
        self._has_exit = kind != IN_THREAD
        late, self._late = self._late, None
        if self._file is not None:
            with contextlib.suppress(OSError, ValueError):
                if late is not None:  # no beat of the thread may come any more
                    self._file.slot(*late)
                self._file.end(kind, name, text)

    def _let_go(self) -> None:
        if self._pid != os.getpid():  # in a forked child a lock of the thread, which is not there, may be held for good
            self._is_over = True
            return
        if self._file is not None and not self._is_over and not self._has_exit:
            self.note("off")
        self._is_over = True
        self._stop.set()

    def _give_up(self, error: Exception) -> None:
        if not self._is_over:
            self._is_over = True
            self._stop.set()
            self._warn(f"whereabouts of this rank are no longer kept ({type(error).__name__}: {error})")


def _around_init(keeper: WhereaboutsKeeper) -> Callable[[], None]:
    """Note that a rank waits in `init_process_group` for the others, and that they have come. Returns the undo."""
    if not torch.distributed.is_available():
        return lambda: None
    original = torch.distributed.init_process_group

    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        if os.environ.get("RANK", "").isdigit():
            keeper.note("starting", "init_process_group")
        result = original(*args, **kwargs)
        keeper.note("starting")
        return result

    import functools

    around = functools.wraps(original)(init_process_group)
    torch.distributed.init_process_group = around

    def undo() -> None:
        if torch.distributed.init_process_group is around:
            torch.distributed.init_process_group = original

    return undo
