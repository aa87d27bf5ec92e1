"""A file that grows by whole pieces: what a full disk or a kill leaves is all pieces but the last."""

from __future__ import annotations

import os
from pathlib import Path

_LARGEST_WRITE = 1 << 30  # bytes; Linux writes at most 2**31 - 4096 in one call
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC


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
        """Take everything out again."""
        os.ftruncate(self._fd, 0)
        self.n_bytes = 0

    def close(self) -> None:
        """Close it as it is. Safe to call twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
