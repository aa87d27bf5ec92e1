"""One Arrow IPC stream on disk that grows by whole batches and is readable after each, whatever kills the writer.

A batch is encoded in memory and handed to the operating system in one piece, so what a SIGKILL or a full disk leaves
behind is whole batches and at most one cut one. No fsync: a kill of the process loses nothing that was handed over.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
from pyarrow import ipc

from hypocenter.record.layout import sealed_path

_LARGEST_WRITE = 1 << 30  # bytes; Linux writes at most 2**31 - 4096 in one call
_BUFFER_BYTES = 1 << 16  # most batches fit in
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC


class _Pieces:
    """A file-like object that keeps what is written to it until it is taken."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, piece: bytes) -> int:
        self._pieces.append(bytes(piece))
        return len(piece)

    def take(self) -> bytes:
        taken, self._pieces = b"".join(self._pieces), []
        return taken

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class Stream:
    """An append-only stream of batches of one schema. Every method may raise OSError.

    Args:
        path: wanted path; when a stream or its sealed form has it already, `-2`, `-3`, ... is added to the stem.
        metadata: goes into the schema of the stream.
    """

    def __init__(self, path: Path, schema: pa.Schema, metadata: dict[str, str]) -> None:
        self.path, self._fd = _create(path)
        self.bytes_written = 0
        self._pieces = _Pieces()
        codec = "lz4" if pa.Codec.is_available("lz4") else None
        # Threads of Arrow's own would compete with the training process for its cores.
        options = ipc.IpcWriteOptions(compression=codec, use_threads=False)
        # Arrow writes a hundred small pieces a batch: they are put together before Python sees them.
        self._together = pa.BufferedOutputStream(pa.PythonFile(self._pieces, mode="w"), _BUFFER_BYTES)
        self._encoder = ipc.new_stream(self._together, schema.with_metadata(metadata), options=options)

    def append(self, batch: pa.RecordBatch) -> None:
        """Add one batch and hand it to the operating system; on failure the file is cut back to whole batches."""
        self._encoder.write_batch(batch)
        self._flush()

    def close(self) -> None:
        """Write the end-of-stream mark and close the file."""
        try:
            self._encoder.close()
            self._flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file as it is."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _flush(self) -> None:
        self._together.flush()
        data = memoryview(self._pieces.take())
        done = 0
        try:
            while done < len(data):
                done += os.write(self._fd, data[done : done + _LARGEST_WRITE])
        except BaseException:  # a KeyboardInterrupt between two pieces too
            os.ftruncate(self._fd, self.bytes_written)
            raise
        self.bytes_written += done
        if not os.fstat(self._fd).st_nlink:
            raise FileNotFoundError(f"{self.path} was deleted while it was written")


def _create(path: Path) -> tuple[Path, int]:
    for attempt in range(1, 1000):
        candidate = path if attempt == 1 else path.with_name(f"{path.stem}-{attempt}{path.suffix}")
        if sealed_path(candidate).exists():
            continue  # an earlier process of the same host and number (usual in containers)
        try:
            return candidate, os.open(candidate, _FLAGS, 0o666)
        except FileExistsError:
            continue
    raise FileExistsError(f"a thousand streams named {path.name}")
