"""whereabouts: where one rank is at this moment, in a small file of fixed layout that outlives the process.

A rank that is killed, stopped or hangs leaves no last words. So each rank keeps one file true while it runs: which
step, phase and collective it is in, since when, and a sign of life twice a second. It is written with `pwrite`, which
hands the bytes to the operating system: a SIGKILL loses nothing, and a full or vanished disk is an error that can be
caught. (A mapped file would be ten times cheaper, but answers a full disk, or another's truncation, with SIGBUS.)

Layout, little-endian: head at 0, two slots at 512 and 1024 written in turn, the end at 1536, the sign of life at 2560,
a look at the stack at 2688, and from 4096 on what Python wrote of its stack at a SIGTERM. Each part ends with a CRC-32
of what precedes it, so a reader never takes a torn one; of two whole slots the later one counts.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from struct import Struct
from typing import Any, Literal, get_args

WHEREABOUTS_FILE = "whereabouts"
MAGIC = b"HYPOWHER"
FORMAT = 1
# 1: first version

WherePhase = Literal["starting", "outside", "forward", "loss", "backward", "check", "update", "replay", "agree", "off"]
"""What a rank is doing. outside: the program's own code between steps; off: Hypocenter no longer looks."""
CallState = Literal["inside", "left", "failed"]

PHASES: tuple[WherePhase, ...] = get_args(WherePhase)
CALL_STATES: tuple[CallState, ...] = get_args(CallState)

HEAD = Struct(
    "<8sIiiqqqqq64s40s"
)  # magic, format, rank, world size, pid, start ticks, pid namespace, start ns, attempt, ...
_MOVES, _CALL = "QqqqiBB", "Bxqqq96s144s32s48s64s"
SLOT, SLOT_MOVES, SLOT_CALL = Struct(f"<{_MOVES}{_CALL}"), Struct(f"<{_MOVES}"), Struct(f"<{_CALL}")
"""Where a rank is: what changes with each phase of a step, and the last collective, which seldom does."""
END = Struct("<Bqq64s640s")  # kind, monotonic and Unix ns, type, text
BEAT = Struct("<qq")  # monotonic and Unix ns
LOOK = Struct("<Q144s160s")  # generation of the slot it belongs to, module path, file:line of the program's own code
CRC = Struct("<I")
COUNT = Struct("<Iq")  # crc32 of a group's key, collectives of it that were entered

HEAD_AT, SLOTS_AT, END_AT, BEAT_AT, LOOK_AT, STACK_AT = 0, (512, 1024), 1536, 2560, 2688, 4096
MAX_GROUPS = 8  # of which a rank's counts are kept; a rank of a 5-dimensional layout is in about as many
MAX_STACK_BYTES = 16 << 10
_FATAL = "Fatal Python error: "
_WANTED = ("KeyboardInterrupt", "SystemExit", "StopTraining", "GeneratorExit")
RAISED, ENDED, IN_THREAD = 1, 2, 3  # kinds of end
_STACK_WITHIN_NS = 3_000_000_000  # of the last sign of life: a later time is that of a copy of the file
OWN_SIGTERM, NOT_RECORDING, SELDOM = 1, 2, 4  # flags of a slot


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCall:
    """The last collective that a rank was in."""

    op: str  # all_reduce.sum
    group: str  # torch's name of the process group
    members: str = ""  # its ranks, as `packed_ranks` has them: 10,000 ranks that each name 10,000 are no small thing
    seq: int  # n-th collective of the group, from 0
    state: CallState
    entered_ns: int  # monotonic
    left_ns: int  # monotonic; 0 while inside

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks of the group; () when they are too irregular to be kept."""
        return _unpacked_ranks(self.members)

    @property
    def key(self) -> int:
        """The `group_key` of the group."""
        return _key_of(self.group, self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """An exception that nobody caught, or the end of the program (then `type` is empty)."""

    type: str = ""
    text: str = ""
    ns: int = 0  # Unix time
    mono_ns: int = 0
    in_thread: bool = False  # it ended a thread, not the process


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """What a rank was doing when it last said so. Times: `ns` Unix, `mono_ns` of the machine's monotonic clock."""

    rank: int
    world_size: int
    host: str
    pid: int
    boot: str  # which start of which machine: the monotonic clocks of equal ones agree
    pid_namespace: int
    start_ticks: int  # start of the process in clock ticks since boot (proc(5), stat, field 22); 0: not known
    started_ns: int
    attempt: int = 0  # of an elastic job
    step: int = 0
    microbatch: int = 0
    phase: WherePhase = "starting"
    site: str = ""  # module path, known once the rank has not moved for a second
    line: str = ""  # file:line of the program's own code, likewise
    changed_ns: int = 0
    changed_mono_ns: int = 0
    beat_ns: int = 0  # last sign of life
    beat_mono_ns: int = 0
    call: LastCall | None = None
    counts: dict[int, int] = field(default_factory=dict)  # crc32 of a group's key -> collectives entered
    exit: Exit | None = None
    stack: str = ""  # Python frames at a SIGTERM, innermost first
    stack_ns: int = 0  # Unix time of that signal
    own_sigterm: bool = False  # the program handles SIGTERM itself
    not_recording: bool = False  # its streams had to be given up
    seldom: bool = False  # writing it took long, and moves after this one may not have been written

    @property
    def fatal(self) -> str:
        """What Python said of a crash outside of it, `Segmentation fault`; "" where it said nothing."""
        head = self.stack.partition("\n")[0]
        return head.removeprefix(_FATAL) if head.startswith(_FATAL) else ""

    @property
    def was_interrupted(self) -> bool:
        """Whether somebody, or the program itself, wanted this end: Ctrl-C, `sys.exit`."""
        return self.exit is not None and self.exit.type in _WANTED and not self.exit.in_thread

    @property
    def death(self) -> str:
        """What the process died of, `died of IndexError`; "" where it did not die, or it is not known."""
        if self.has_raised and self.exit is not None and not self.was_interrupted:
            return f"died of {self.exit.type} at step {self.step}"
        is_over = self.exit is not None and not self.exit.in_thread
        return f"crashed ({self.fatal}) at step {self.step}" if self.fatal and not is_over else ""

    @property
    def has_raised(self) -> bool:
        """Whether an exception ended the process."""
        return self.exit is not None and bool(self.exit.type) and not self.exit.in_thread

    @property
    def has_ended(self) -> bool:
        """Whether the program came to its own end."""
        return self.exit is not None and not self.exit.type

    @property
    def is_inside(self) -> bool:
        """Whether the rank waits in a collective."""
        return self.call is not None and self.call.state == "inside"

    @property
    def last_ns(self) -> int:
        """The Unix time of the last sign of life of any kind, in nanoseconds."""
        return self._last()[0]

    @property
    def last_mono_ns(self) -> int:
        """The time of the last sign of life on the monotonic clock, in nanoseconds."""
        return self._last()[1]

    def _last(self) -> tuple[int, int]:
        said = max((self.changed_ns, self.changed_mono_ns), (self.beat_ns, self.beat_mono_ns))
        ns, mono_ns = max(said, (self.exit.ns, self.exit.mono_ns)) if self.exit is not None else said
        later_ns = self.stack_ns - ns
        return (ns + later_ns, mono_ns + later_ns) if 0 < later_ns < _STACK_WITHIN_NS else (ns, mono_ns)


def read_whereabouts(folder: Path, name: str = WHEREABOUTS_FILE) -> Whereabouts | None:
    """Read the file of a rank folder; None when there is none, or none that can be trusted."""
    try:
        with (folder / name).open("rb") as file:
            data = file.read(STACK_AT + MAX_STACK_BYTES)
            changed_ns = os.fstat(file.fileno()).st_mtime_ns
        found = _decoded(data)
        return replace(found, stack_ns=changed_ns) if found is not None and found.stack else found
    except (OSError, ValueError, OverflowError):
        return None


def read_earlier(folder: Path) -> list[Whereabouts]:
    """Read the files of earlier attempts, and this one's if a later attempt never wrote one."""
    try:
        names = [path.name for path in folder.iterdir() if path.name.startswith(WHEREABOUTS_FILE)]
    except OSError:
        return []
    return [seen for name in sorted(names) if (seen := read_whereabouts(folder, name)) is not None]


def group_key(group: str, ranks: tuple[int, ...]) -> int:
    """Return a number that is the same on every rank of a group; groups of one name differ by their ranks."""
    return zlib.crc32(f"{group}|{','.join(map(str, ranks))}".encode())


def packed_ranks(ranks: tuple[int, ...]) -> bytes:
    """Return `0-511` or `0-504:8` for ranks at equal distances, else a list; empty when too long for its field."""
    step = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    if len(ranks) > 2 and step > 0 and ranks == tuple(range(ranks[0], ranks[-1] + 1, step)):
        return f"{ranks[0]}-{ranks[-1]}:{step}".encode()
    text = ",".join(map(str, ranks)).encode()
    return text if len(text) <= 64 else b""


@lru_cache(maxsize=4096)
def _key_of(group: str, members: str) -> int:
    return group_key(group, _unpacked_ranks(members))


@lru_cache(maxsize=4096)
def _unpacked_ranks(text: str) -> tuple[int, ...]:
    """Return the ranks that `packed_ranks` has packed: all members of a group share one tuple. Damage is none."""
    try:
        if "-" not in text:
            return tuple(int(part) for part in text.split(",") if part)
        span, _, step = text.partition(":")
        first, _, last = span.partition("-")
        found = range(int(first), int(last) + 1, int(step or 1))
        return tuple(found) if len(found) <= 1 << 20 else ()
    except (ValueError, OverflowError):
        return ()


def _decoded(data: bytes) -> Whereabouts | None:
    head = _part(data, HEAD, HEAD_AT)
    if head is None or head[0] != MAGIC or head[1] > FORMAT:
        return None
    _, _, rank, world_size, pid, ticks, namespace, started_ns, attempt, host, boot = head
    slots = [slot for at in SLOTS_AT if (slot := _part(data, SLOT, at)) is not None]
    latest = max(slots, key=lambda slot: (slot[1], slot[0]), default=None)
    known: dict[str, Any] = _position(latest) if latest is not None else {}
    look, beat = _part(data, LOOK, LOOK_AT), _part(data, BEAT, BEAT_AT) or (0, 0)
    if latest is not None and look is not None and look[0] == latest[0]:
        known |= {"site": _text(look[1]) or known["site"], "line": _text(look[2])}
    end = _part(data, END, END_AT)
    return Whereabouts(
        rank=rank, world_size=world_size, host=_text(host), pid=pid, boot=_text(boot), pid_namespace=namespace,
        start_ticks=ticks, started_ns=started_ns, attempt=attempt, beat_mono_ns=beat[0], beat_ns=beat[1],
        exit=_exit(end) if end is not None and end[0] in (RAISED, ENDED, IN_THREAD) else None,
        stack=_text(data[STACK_AT:]), **known,
    )  # fmt: skip


def _position(slot: tuple[Any, ...]) -> dict[str, Any]:
    _, mono_ns, ns, step, microbatch, phase, flags, state, seq, entered, left, counts, site, op, group, ranks = slot
    call = None
    if 0 < state <= len(CALL_STATES):
        call = LastCall(
            op=_text(op), group=_text(group), members=_text(ranks), seq=seq,
            state=CALL_STATES[state - 1], entered_ns=entered, left_ns=left,
        )  # fmt: skip
    return {
        "step": step, "microbatch": microbatch, "phase": PHASES[phase] if phase < len(PHASES) else "outside",
        "site": _text(site), "changed_ns": ns, "changed_mono_ns": mono_ns, "call": call,
        "counts": {key: n for key, n in COUNT.iter_unpack(counts) if n > 0},
        "own_sigterm": bool(flags & OWN_SIGTERM), "not_recording": bool(flags & NOT_RECORDING),
        "seldom": bool(flags & SELDOM),
    }  # fmt: skip


def _exit(end: tuple[Any, ...]) -> Exit:
    kind, mono_ns, ns, name, text = end
    return Exit(type=_text(name), text=_text(text), ns=ns, mono_ns=mono_ns, in_thread=kind == IN_THREAD)


def _part(data: bytes, layout: Struct, at: int) -> tuple[Any, ...] | None:
    """Return the fields of a part; None when its checksum is wrong, as in a part that was never written."""
    body = data[at : at + layout.size]
    check = data[at + layout.size : at + layout.size + CRC.size]
    if len(check) < CRC.size or not any(body) or CRC.unpack(check)[0] != zlib.crc32(body):
        return None
    return layout.unpack(body)


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode("utf-8", "replace")
