"""Files that appear whole or not at all: whoever reads one finds what was there before, or all of it."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that appears whole, in a folder that is there. Raises OSError."""
    part = written_beside(path, data)
    try:
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def written_beside(path: Path, data: bytes) -> Path:
    """Write a new hidden file beside it, with a name that no other process on any machine uses. Raises OSError."""
    part = path.with_name(f".{path.name}-{socket.gethostname()}-{os.getpid()}-{time.monotonic_ns()}")
    try:
        with part.open("xb") as file:
            file.write(data)
    except OSError:
        part.unlink(missing_ok=True)  # a full disk
        raise
    return part
