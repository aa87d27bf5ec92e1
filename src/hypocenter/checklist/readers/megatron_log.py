"""The arguments that Megatron-LM prints when it starts, out of a log."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hypocenter.checklist.catalogue import Source, reader
from hypocenter.checklist.checklist import ConfigurationError, Entry, Given
from hypocenter.checklist.words import literal, plain

_BEGINS = re.compile(r"-{8,} arguments -{8,}")
_ENDS = re.compile(r"-{6,} end of arguments -{6,}")
_DOTTED = re.compile(r"(?:^|[\s\]>|:])([A-Za-z_]\w*) \.+ ?(.*?)\s*$")
_BARE = re.compile(r"(?:^|[\s\]>|:])([A-Za-z_]\w{46,})  (.*?)\s*$")  # a name so long that no dots are left
_PADDED = re.compile(r"padded vocab \(size: (\d+)\) with \d+ dummy tokens \(new size: (\d+)\)")


def _accepts(source: Source) -> float:
    return 0.95 if source.is_text and _BEGINS.search(source.text) else 0.0


@reader("megatron-log", accepts=_accepts)
def read(source: Source) -> Given:
    """A log of Megatron-LM: the block between `---- arguments ----` and `---- end of arguments ----`.

    Anything may stand before a line (a date, `[default0]:`, a rank). Of several blocks, as of a job that was started
    again, the last one counts. `> padded vocab (size: …)` of the lines behind it is read too.
    """
    lines = source.text.splitlines()
    starts = [i for i, line in enumerate(lines) if _BEGINS.search(line)]
    entries = list(_block(lines, starts[-1], source.name))
    if not entries:
        raise ConfigurationError(
            "the log has no arguments", where=f"{source.path}:{starts[-1] + 1}",
            why="nothing stands between the lines of the block", fix="give the log of rank 0",
        )  # fmt: skip
    notes = [f"{source.name}: the last of {len(starts)} blocks of arguments is read"] if len(starts) > 1 else []
    if not any(_ENDS.search(line) for line in lines[starts[-1] :]):
        notes.append(f"{source.name}: the block of arguments has no end: the log is cut")
    return Given(
        kind="megatron-log",
        table="megatron",
        entries=(*entries, *_padding(lines, source.name, entries)),
        notes=tuple(notes),
    )


def _block(lines: list[str], start: int, name: str) -> Iterator[Entry]:
    for i in range(start + 1, len(lines)):
        if _ENDS.search(lines[i]):
            return
        match = _DOTTED.search(lines[i]) or _BARE.search(lines[i])
        if match:
            yield Entry(
                key=match[1], value=plain(literal(match[2])) if match[2] else None,
                spelled=f"{match[1]} {match[2]}".strip()[:300], where=f"{name}:{i + 1}",
            )  # fmt: skip


def _padding(lines: list[str], name: str, entries: list[Entry]) -> Iterator[Entry]:
    """Yield the size of the vocabulary as the tokenizer has it and as it was padded."""
    said = {entry.key for entry in entries if entry.value is not None}
    for i, line in enumerate(lines):
        match = _PADDED.search(line) if "padded vocab" in line else None
        if match:
            for key, value in (("vocab_size", match[1]), ("padded_vocab_size", match[2])):
                if key not in said:
                    yield Entry(key=key, value=int(value), spelled=match[0], where=f"{name}:{i + 1}")
            return
