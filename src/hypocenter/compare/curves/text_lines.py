"""Lines of a text file of any size, whatever bytes are in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

LINE_BYTES = 1 << 20  # longer lines are cut: no logger writes them


def lines(path: Path) -> Iterator[str]:
    """Each line without its end; bytes that are no UTF-8 become �, a line over a megabyte is cut. Raises OSError.

    Progress bars write `\\r` inside a line: what is behind the last one is what a person sees.
    """
    with path.open("rb") as file:
        cut = False
        while chunk := file.readline(LINE_BYTES):
            ended = chunk.endswith(b"\n")
            if not cut:
                yield chunk.decode("utf-8", "replace").rstrip("\r\n")
            cut = not ended
