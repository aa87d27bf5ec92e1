"""What an agent may read: what lies below the folders that the server was started with, and no link out of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hypocenter.errors import HypocenterError

MOST_ENTRIES = 200_000  # files of one folder that are looked through for links; a job of 1,000 ranks has about 10,000


class OutsideError(HypocenterError):
    """A path that an agent may not read."""

    slug = "outside-roots"


def roots_of(folders: Sequence[Path]) -> tuple[Path, ...]:
    """Return the folders, resolved.

    Raises:
        OutsideError: one is no folder.
    """
    for folder in folders:
        if not folder.is_dir():
            raise OutsideError("a root is no folder", where=str(folder), fix="name folders that hold recordings")
    return tuple(folder.resolve() for folder in folders)


def allowed(text: str, roots: Sequence[Path]) -> Path:
    """Return the resolved path if it may be read; a relative one is looked for below each root, in order.

    Args:
        text: as the agent wrote it.
        roots: resolved.

    Raises:
        OutsideError: it lies outside of the roots, or something in it is a link to there.
    """
    tried = [_resolved(root / text) for root in roots]
    inside = [path for path in tried if path is not None and _is_below(path, roots)]
    found = next((path for path in inside if path.exists()), inside[0] if inside else None)
    if found is None:
        raise OutsideError(
            "this may not be read",
            where=text,
            why=f"it is not below {' or '.join(map(str, roots))}",
            fix="name something below there, or start `hypocenter mcp` with another folder",
        )
    for number, link in enumerate(_links(found)):
        target = _resolved(link) if number < MOST_ENTRIES else None
        if target is None or not _is_below(target, roots):
            raise OutsideError(
                "this may not be read", where=text, why=f"{link} leads out of {' and '.join(map(str, roots))}"
            )
    return found


def _resolved(path: Path) -> Path | None:
    try:
        return path.resolve()
    except (OSError, ValueError, RuntimeError):  # a null character, a loop of links
        return None


def _is_below(path: Path, roots: Sequence[Path]) -> bool:
    return any(path.is_relative_to(root) for root in roots)


def _links(folder: Path) -> Iterator[Path]:
    """Yield symbolic links in a folder and below; one with too many entries counts as a link that leads out."""
    n_seen = 0
    waiting = [str(folder)] if folder.is_dir() else []
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    n_seen += 1
                    if n_seen > MOST_ENTRIES:
                        yield folder / "..." / ".." / ".." / ".."
                        return
                    if entry.is_symlink():
                        yield Path(entry.path)
                    elif entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError:
            continue  # who reads it next says so
