"""Command lines as entries: what stands before the program is its launcher's, what stands behind it its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypocenter.checklist.configuration import Value
from hypocenter.checklist.entry import Entry
from hypocenter.checklist.shell.expansion import Field
from hypocenter.checklist.tables import Table
from hypocenter.checklist.words import literal, plain

_FLAG = re.compile(r"--?([A-Za-z][\w.+-]*)(?:=(.*))?$", re.DOTALL)
_LAUNCHING = (
    "torch.distributed.launch",
    "torch.distributed.run",
    "accelerate.commands.launch",
    "torch_npu",
    "deepspeed",
)


@dataclass(slots=True, kw_only=True)
class CommandLine:
    """A command that starts a program: the words before the program, its name, and those behind it."""

    launcher: tuple[Field, ...] = ()
    program: str = ""
    words: tuple[Field, ...] = field(default=())


def command_line(words: tuple[Field, ...]) -> CommandLine | None:
    """The parts of a command; None when it starts no Python program."""
    texts = [word.text for word in words]
    for i, text in enumerate(texts):
        if text.endswith(".py") and not text.startswith("-"):
            return CommandLine(launcher=words[:i], program=text, words=words[i + 1 :])
        if text == "-m" and i + 1 < len(texts) and not texts[i + 1].startswith(_LAUNCHING):
            return CommandLine(launcher=words[:i], program=texts[i + 1], words=words[i + 2 :])
        if i and text in ("sft", "train", "pretrain") and not texts[i - 1].startswith("-"):
            return CommandLine(launcher=words[:i], program=text, words=words[i + 1 :])
    return None


def entries(words: tuple[Field, ...], table: Table, name: str, notes: list[str]) -> Iterator[Entry]:
    """The flags among these words, by their keys in the table.

    Args:
        words: of a command, behind the program.
        table: says which flags take no value, and which stand for another key.
        name: of the file, for places.
        notes: added to: words of which cannot be told what they hold, or that belong to no flag.
    """
    at = 0
    while at < len(words):
        match = _FLAG.match(words[at].text) if words[at].runs and words[at].runs[0].is_known else None
        if match is None:
            notes.append(_left(words[at], name))
            at += 1
            continue
        flag, start = words[at], at
        at += 1
        key = match[1].replace("-", "_")
        values: list[Field] = []
        is_switch = key in table.switches.keys or key in table.flags
        while match[2] is None and at < len(words) and not _is_flag(words[at]):
            if is_switch and not _is_boolean(words[at]):
                break
            if not words[at].is_known and values and not words[at].text.startswith("<"):
                break  # one that is not known may be the value; a second one may be anything
            values.append(words[at])
            at += 1
        yield _entry(key, match, flag, words[start:at], values, table, name)


def _entry(
    key: str, match: re.Match[str], flag: Field, words: tuple[Field, ...], values: list[Field], table: Table, name: str
) -> Entry:
    spelled = " ".join(word.text for word in words)
    where = f"{name}:{flag.line}" if flag.line else name
    value: Value = True
    if match[2] is not None:
        value = plain(literal(match[2]))
    elif values:
        found = [plain(literal(word.text)) for word in values]
        value = found[0] if len(found) == 1 else tuple(v if not isinstance(v, tuple) else str(v) for v in found)
    if key in table.flags and value is True:
        key, value = table.flags[key]
    is_resolved = flag.is_known and all(word.is_known for word in values)
    return Entry(key=key, value=value, spelled=spelled[:300], where=where, is_resolved=is_resolved)


def _is_flag(word: Field) -> bool:
    return bool(word.runs) and word.runs[0].is_known and _FLAG.match(word.text) is not None


def _is_boolean(word: Field) -> bool:
    return word.text.lower() in ("true", "false")


def _left(word: Field, name: str) -> str:
    why = "belongs to no flag" if word.is_known else "comes from outside of the script: flags in it are not known"
    return f"{name}:{word.line}: {word.text[:100]} {why}"
