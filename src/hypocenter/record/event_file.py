"""A file of TensorBoard's: steps as scalars, readings as histograms, findings as text.

Written without the package: an event file is a sequence of records (length, CRC-32C, protocol buffer Event, CRC-32C)
as tensorflow/core/lib/io/record_writer.h and tensorflow/core/util/event.proto describe them. To import TensorBoard
would bring TensorFlow into a training process that has it installed.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from struct import pack

from hypocenter.nouns import Finding, Reading, StepRecord, Summary
from hypocenter.record import protobuf as pb
from hypocenter.record.step_numbers import numbers_of

_STRING = 7  # DT_STRING of tensorflow/core/framework/types.proto
_files = count()


class EventFile:
    """Appends to a new file `events.out.tfevents.*` in `folder`, which is one run of TensorBoard.

    Every method takes `wall_time_s`, Unix seconds; now if it is not given.
    """

    def __init__(self, folder: Path, *, wall_time_s: float | None = None) -> None:
        began_s = time.time() if wall_time_s is None else wall_time_s
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(began_s):010d}.{socket.gethostname()}.{next(_files)}.hypocenter"
        self._file = (folder / name).open("wb")
        self._append(pb.double(1, began_s) + pb.text(3, "brain.Event:2"))

    def step(self, step: StepRecord, *, wall_time_s: float | None = None) -> None:
        """Write the numbers of a step, one scalar each."""
        self._event(step.step, wall_time_s, (_scalar(*each) for each in numbers_of(step).items()))

    def readings(self, readings: Iterable[Reading], *, wall_time_s: float | None = None) -> None:
        """Write a histogram of log2 magnitudes of each reading that has one: exponents are what was counted."""
        by_step: dict[int, list[bytes]] = {}
        for reading in readings:
            if any(reading.summary.hist) and reading.port != "value":
                by_step.setdefault(reading.step, []).append(_histogram(_tag(reading), reading.summary))
        for step, values in by_step.items():
            self._event(step, wall_time_s, values)

    def finding(self, finding: Finding, text: str, *, wall_time_s: float | None = None) -> None:
        """Write a text, in Markdown, at the finding's step."""
        self._event(finding.step, wall_time_s, [_text(f"findings/{finding.code}", text)])

    def flush(self) -> None:
        """Hand what was written to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """End the file."""
        self._file.close()

    def _event(self, step: int, wall_time_s: float | None, values: Iterable[bytes]) -> None:
        now_s = time.time() if wall_time_s is None else wall_time_s
        summary = pb.message(5, *(pb.message(1, value) for value in values))
        self._append(pb.double(1, now_s) + pb.varint(2, step) + summary)

    def _append(self, event: bytes) -> None:
        length = pack("<Q", len(event))
        self._file.write(length + pack("<I", masked_crc32c(length)) + event + pack("<I", masked_crc32c(event)))


def _tag(reading: Reading) -> str:
    call = f" call {reading.call}" if reading.call else ""
    return f"{reading.phase}/{reading.site or 'model'}/{reading.port}{call} (log2 of magnitudes)"


def _scalar(tag: str, value: float) -> bytes:
    return pb.text(1, tag) + pb.float32(2, value)


def _histogram(tag: str, summary: Summary) -> bytes:
    """Return buckets of one power of two; each value counts as if it lay in the middle of its bucket."""
    exponents = range(summary.hist_first, summary.hist_first + len(summary.hist))
    middles = [(exponent + 0.5, n) for exponent, n in zip(exponents, summary.hist, strict=True)]
    seen = [exponent for exponent, n in zip(exponents, summary.hist, strict=True) if n]
    return pb.text(1, tag) + pb.message(
        5,
        pb.double(1, seen[0]),
        pb.double(2, seen[-1] + 1.0),
        pb.double(3, sum(summary.hist)),
        pb.double(4, sum(n * middle for middle, n in middles)),
        pb.double(5, sum(n * middle * middle for middle, n in middles)),
        pb.doubles(6, [float(exponents[0]), *(exponent + 1.0 for exponent in exponents)]),
        pb.doubles(7, [0.0, *map(float, summary.hist)]),
    )


def _text(tag: str, text: str) -> bytes:
    plugin = pb.message(9, pb.message(1, pb.text(1, "text")))
    return (
        pb.text(1, tag)
        + plugin
        + pb.message(8, pb.varint(1, _STRING), pb.message(2, pb.message(2, pb.varint(1, 1))), pb.text(8, text))
    )


_MASK = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected


def _table() -> list[int]:
    table: list[int] = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def masked_crc32c(data: bytes) -> int:
    """Return the checksum of a TFRecord: CRC-32C, rotated and shifted by a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF
