"""nodes/00008: what is known of the ranks of one node, from rank 8 on, in one file that is written once a second.

So whoever follows a job of 10,000 ranks opens a file for each node, not several for each rank. It is made once and then
written in place: no lock, and no file is made, renamed or listed again, which is what shared file systems are slow at.

Layout, little-endian: two slots of equal size, written in turn. Each has a head (magic, format, generation,
bytes, CRC-32 of them) and the bytes: a `NodeNote` as MessagePack. Of two whole slots the later one counts.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import msgspec

from hypocenter.nouns import Place, StepRecord
from hypocenter.record.layout import NODES_FOLDER
from hypocenter.record.liveness import Liveness
from hypocenter.record.tail import open_regular
from hypocenter.record.whereabouts import Whereabouts
from hypocenter.record.whole_file import write_whole

FORMAT = 2
# 1: first version
# 2: ranks of a group are packed: `members` of a LastCall, `ranks` before, which are not read; `seen` may be missing
_HEAD = struct.Struct("<8sIQII")
_MAGIC = b"HYPONODE"
_PER_RANK = 4096  # bytes of a slot


class RankNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rank."""

    seen: Whereabouts | None = None  # with little of the stack of a SIGTERM; MindSpore's ranks have none
    life: Liveness = "unknown"  # of its process, seen from its own node
    place: Place | None = None  # without groups and layers
    last: StepRecord | None = None  # the last step that it completed
    first_bad_step: int | None = None
    evidence_ns: int = 0  # when its folder of evidence last changed; 0: there is none

    @property
    def started_ns(self) -> int:
        """When its process was started, Unix time."""
        attempts = self.place.attempts if self.place is not None else ()
        return self.seen.started_ns if self.seen is not None else attempts[-1].started_ns if attempts else 0


class NodeNote(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a node."""

    host: str
    written_ns: int  # Unix time
    ranks: dict[int, RankNote]


_decode = msgspec.msgpack.Decoder(NodeNote).decode


class NodeFile:
    """The writing end. Every method may raise OSError.

    Args:
        run: the run directory.
        first: the lowest rank.
        n_ranks: that the file has room for.
    """

    def __init__(self, run: Path, first: int, n_ranks: int) -> None:
        path = run / NODES_FOLDER / f"{first:05d}"
        path.parent.mkdir(exist_ok=True)
        self._room, self._generation = _PER_RANK * (n_ranks + 1), 0
        write_whole(path, b"\0" * 2 * self._room)
        self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def write(self, note: NodeNote) -> None:
        """Write a note in place of the one before the last; where it has no room, nothing."""
        data = msgspec.msgpack.encode(note)
        if _HEAD.size + len(data) > self._room:
            return
        self._generation += 1
        head = _HEAD.pack(_MAGIC, FORMAT, self._generation, len(data), zlib.crc32(data))
        os.pwrite(self._fd, head + data, self._room * (self._generation & 1))
        os.fdatasync(self._fd)  # where files are shared, others see it now; only this process waits


def read_node(path: Path, known: tuple[int, NodeNote] | None = None) -> tuple[int, NodeNote] | None:
    """Return the generation of the latest whole note and the note; None when there is none that can be trusted.

    Args:
        known: what was read before: itself is returned where nothing was written since.
    """
    try:
        fd = open_regular(path)
        try:
            room = os.fstat(fd).st_size // 2
            heads = [(_HEAD.unpack(os.pread(fd, _HEAD.size, at)), at) for at in (0, room)]
            for (magic, form, generation, size, check), at in sorted(heads, key=lambda each: -each[0][2]):
                if magic != _MAGIC or form > FORMAT:
                    continue
                if known is not None and generation == known[0]:
                    return known
                data = os.pread(fd, min(size, room), at + _HEAD.size)
                if len(data) == size and zlib.crc32(data) == check:
                    return generation, _decode(data)
        finally:
            os.close(fd)
    except (OSError, ValueError, OverflowError, RecursionError, struct.error):
        pass
    return None
