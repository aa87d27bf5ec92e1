"""What the files of a rank are called: who wrote them, of which kind, and which of that writer's segments they hold.

A process writes one pair of streams after the other, its *segments*: `events-h-1.arrow`, `events-h-1.s00001.arrow`, ...
A file made of several names the first and the last of them, and stands in their place from the moment it is there:
`sealed-steps-h-1.s00000-00007.parquet`. So files can be put together, and the old ones deleted after that, with no
moment at which a step is missing or counts twice.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from hypocenter.record.elsewhere import bring
from hypocenter.record.layout import SEALED_PREFIX, SEALED_SUFFIX, STREAM_SUFFIX, sealed_path

ROWS = ("events", "steps")
WINDOWS = "windows"
_NAME = re.compile(
    rf"(?P<sealed>{SEALED_PREFIX})?(?P<kind>events|steps|windows)-(?P<writer>.+?)"
    r"(?:\.s(?P<first>\d{5,9})(?:-(?P<last>\d{5,9}))?)?(?P<suffix>\.arrow|\.parquet)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One or more segments of one process, of one kind: a stream, its sealed form, or both."""

    kind: str  # events, steps, windows
    writer: str  # <host>-<pid>
    stream: Path  # there only while it is no sealed file
    first: int = 0
    last: int = 0
    is_gathered: bool = False  # made of segments that were there before

    @property
    def sealed(self) -> Path:
        """The path of the Parquet file, which need not be there."""
        return sealed_path(self.stream)


def segment_name(kind: str, writer: str, number: int) -> str:
    """Return the file name of the stream of a segment; segments count from 0."""
    return f"{kind}-{writer}{f'.s{number:05d}' if number else ''}{STREAM_SUFFIX}"


def gathered(folder: Path, kind: str, writer: str, first: int, last: int) -> Part:
    """Return the part that takes the place of these segments; its file need not exist."""
    stream = folder / f"{kind}-{writer}.s{first:05d}-{last:05d}{STREAM_SUFFIX}"
    return Part(kind=kind, writer=writer, stream=stream, first=first, last=last, is_gathered=True)


def parts_of(folder: Path, kinds: Collection[str] = ROWS) -> list[Part]:
    """Return what each process wrote to a rank's folder, segments in order, each row once. Raises OSError.

    Args:
        folder: of the rank.
        kinds: of `events`, `steps`, `windows`.
    """
    return standing_of(all_parts(folder, kinds))


def standing_of(parts: Sequence[Part]) -> list[Part]:
    """Return the parts whose rows no other part holds as well."""
    return [part for _, group in groupby(parts, lambda p: (p.kind, p.writer)) for part in _standing(list(group))]


def all_parts(folder: Path, kinds: Collection[str] = ROWS) -> list[Part]:
    """Return all parts, also those that another stands for: a process died before it could delete them."""
    bring(folder, kinds)
    found: dict[tuple[str, str, int, int, bool], Part] = {}
    for path in folder.iterdir():
        match = _NAME.fullmatch(path.name)
        if match is None or match["kind"] not in kinds:
            continue
        if (match["suffix"] == SEALED_SUFFIX) != bool(match["sealed"]):
            continue
        first = int(match["first"] or 0)
        last, is_gathered = int(match["last"] or first), match["last"] is not None
        stem = path.name.removeprefix(SEALED_PREFIX).removesuffix(match["suffix"])
        found[match["kind"], match["writer"], first, -last, not is_gathered] = Part(
            kind=match["kind"], writer=match["writer"], stream=folder / f"{stem}{STREAM_SUFFIX}",
            first=first, last=last, is_gathered=is_gathered,
        )  # fmt: skip
    return [found[key] for key in sorted(found)]


def _standing(parts: list[Part]) -> Iterator[Part]:
    """Yield the parts of one writer that no other holds; sorted by first segment, the longest first."""
    until = -1
    for part in parts:
        if part.last > until:
            until = part.last
            yield part
