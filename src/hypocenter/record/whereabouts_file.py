"""The writing end of `whereabouts`: one process keeps the file of its rank true."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import zlib
from pathlib import Path
from struct import Struct
from typing import Any

from hypocenter.record.liveness import boot_id, pid_namespace, start_ticks
from hypocenter.record.whereabouts import (
    BEAT,
    BEAT_AT,
    CRC,
    END,
    END_AT,
    FORMAT,
    HEAD,
    HEAD_AT,
    LOOK,
    LOOK_AT,
    MAGIC,
    SLOT_MOVES,
    SLOTS_AT,
    STACK_AT,
    WHEREABOUTS_FILE,
    read_whereabouts,
)

_pack_moves, _pack_crc = SLOT_MOVES.pack, CRC.pack


class WhereaboutsFile:
    """The file of this process. Every method may raise OSError; none keeps anything for later.

    Args:
        folder: of the rank; made when it is not there. An earlier attempt's file is kept as `whereabouts-N`.
        attempt: how often an elastic job was started anew.
    """

    def __init__(self, folder: Path, *, rank: int, world_size: int, attempt: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / WHEREABOUTS_FILE
        temporary = folder / f".{WHEREABOUTS_FILE}-{os.getpid()}"
        self._fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            _written(self._fd, b"\0" * STACK_AT, 0)  # room is taken now: a later write finds a full disk no obstacle
            host = socket.gethostname().encode("utf-8", "replace")
            self._put(HEAD, HEAD_AT, (
                MAGIC, FORMAT, rank, world_size, os.getpid(), start_ticks(os.getpid()), pid_namespace(),
                time.time_ns(), attempt, host[:64], boot_id().encode()[:40],
            ))  # fmt: skip
            earlier = read_whereabouts(folder)
            if earlier is not None:
                self.path.replace(folder / f"{WHEREABOUTS_FILE}-{earlier.attempt}")
            temporary.replace(self.path)
        except BaseException:
            os.close(self._fd)
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        self.generation = 0  # of the slot that was written last

    def slot(self, moves: tuple[int, ...], call: bytes) -> None:
        """Write where the rank is.

        Args:
            moves: the fields of SLOT_MOVES after the generation.
            call: what `SLOT_CALL` has packed.
        """
        self.generation = generation = self.generation + 1
        body = _pack_moves(generation, *moves) + call
        os.pwrite(self._fd, body + _pack_crc(zlib.crc32(body)), SLOTS_AT[generation & 1])

    def beat(self) -> None:
        """Write a sign of life."""
        self._put(BEAT, BEAT_AT, (time.monotonic_ns(), time.time_ns()))

    def look(self, generation: int, site: str, line: str) -> None:
        """Write what the stack shows of a rank that has stayed where a slot says that it is."""
        self._put(LOOK, LOOK_AT, (generation, _cut(site, 144), _cut(line, 160)))

    def end(self, kind: int, name: str = "", text: str = "") -> None:
        """Write how the process ends (RAISED, ENDED, IN_THREAD)."""
        fields = kind, time.monotonic_ns(), time.time_ns(), _cut(name, 64), _cut(text, 640)
        self._put(END, END_AT, fields)

    def stack_file(self) -> int:
        """Return a new descriptor whose next write goes where the stack of a SIGTERM belongs."""
        fd = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        os.lseek(fd, STACK_AT, os.SEEK_SET)
        return fd

    def close(self) -> None:
        """Close the file; it stays as it is."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _put(self, layout: Struct, at: int, fields: tuple[Any, ...]) -> None:
        body = layout.pack(*fields)
        os.pwrite(self._fd, body + CRC.pack(zlib.crc32(body)), at)


def _written(fd: int, data: bytes, at: int) -> None:
    if os.pwrite(fd, data, at) != len(data):
        raise OSError("the file could not be made in one piece")


def _cut(text: str, at_most: int) -> bytes:
    return " ".join(text.split()).encode("utf-8", "replace")[:at_most]
