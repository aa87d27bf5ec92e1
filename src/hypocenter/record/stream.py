"""One Arrow IPC stream on disk that grows by whole batches and is readable after each, whatever kills the writer.

A batch is encoded in memory and handed to the operating system in one piece, so what a SIGKILL or a full disk leaves
behind is whole batches and at most one cut one. No fsync: a kill of the process loses nothing that was handed over.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
from pyarrow import ipc

from hypocenter.record.schema import batch_of

_BUFFER_BYTES = 1 << 16  # most batches fit in
_LARGEST_WRITE = 1 << 30  # bytes; Linux writes at most 2**31 - 4096 in one call
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_BINARY", 0)  # Windows: no line ends


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
        path: of a file that does not exist.
        metadata: goes into the schema of the stream.

    Attributes:
        file: that it grows in.
        n_batches: in it.
    """

    def __init__(self, path: Path, schema: pa.Schema, metadata: dict[str, str]) -> None:
        self.file = AppendedFile(path.with_name(f".{path.name}"))
        self.n_batches = 0  # the first one is empty
        self._pieces = _Pieces()
        codec = "lz4" if pa.Codec.is_available("lz4") else None
        # Threads of Arrow's own would compete with the training process for its cores.
        options = ipc.IpcWriteOptions(compression=codec, use_threads=False)
        # Arrow writes a hundred small pieces a batch: they are put together before Python sees them.
        self._together = pa.BufferedOutputStream(pa.PythonFile(self._pieces, mode="w"), _BUFFER_BYTES)
        self._encoder = ipc.new_stream(self._together, schema.with_metadata(metadata), options=options)
        self.append(batch_of(schema, []))  # writes the columns: a stream without rows can be read, too
        self.file.path = self.file.path.replace(path)  # from here on it is one: a kill leaves none without columns

    def append(self, batch: pa.RecordBatch) -> None:
        """Add a batch and hand it to the operating system; on failure the file is cut back to what it was."""
        self._encoder.write_batch(batch)
        self._flush()
        self.n_batches += 1

    def close(self) -> None:
        """Write the end-of-stream mark and close the file."""
        try:
            self._encoder.close()
            self._flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file as it is."""
        self.file.close()

    def _flush(self) -> None:
        self._together.flush()
        self.file.append(self._pieces.take())


class AppendedFile:
    """A new file. Every method may raise OSError.

    Args:
        path: of a file that does not exist.

    Attributes:
        n_bytes: handed to the operating system so far. No fsync: a kill of the process loses none of them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, _FLAGS, 0o666)
        self.n_bytes = 0

    def append(self, piece: bytes) -> None:
        """Add a piece; on failure the file is cut back to what it was."""
        data, done = memoryview(piece), 0
        try:
            while done < len(data):
                done += os.write(self._fd, data[done : done + _LARGEST_WRITE])
        except BaseException:  # a KeyboardInterrupt between two writes too
            os.ftruncate(self._fd, self.n_bytes)
            raise
        self.n_bytes += done
        if not os.fstat(self._fd).st_nlink:
            raise FileNotFoundError(f"{self.path} was deleted while it was written")

    def clear(self) -> None:
        """Remove everything from the file."""
        os.ftruncate(self._fd, 0)
        self.n_bytes = 0

    def close(self) -> None:
        """Close the file as it is. Safe to call twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
