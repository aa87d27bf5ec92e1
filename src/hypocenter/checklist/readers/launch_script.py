"""Shell scripts that start a training: Megatron-LM's flags, those of TrainingArguments, the launcher's, exports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypocenter.checklist.catalogue import Source, reader
from hypocenter.checklist.checklist import ConfigurationError, Entry, Given, Value
from hypocenter.checklist.shell.expansion import Field
from hypocenter.checklist.shell.follow import Script, follow, split_again
from hypocenter.checklist.tables import Table, table
from hypocenter.checklist.words import literal, plain

_SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch", ".sub", ".zsh")
_SHEBANG = re.compile(r"#!.*\b(?:ba|z|da|k)?sh\b")
_STARTS = re.compile(r"\b(?:python3?|torchrun|deepspeed|accelerate|msrun|srun)\b")
_FLAG = re.compile(r"(?:^|[\s\"'(])--[a-z][\w-]+")
_PROGRAMS = {
    "megatron": "megatron-shell",
    "training_arguments": "trainer-shell",
    "mindformers_run": "mindformers-shell",
}
_FLAG_AND_VALUE = re.compile(r"--?([A-Za-z][\w.+-]*)(?:=(.*))?$", re.DOTALL)
_LAUNCHING = (
    "torch.distributed.launch",
    "torch.distributed.run",
    "accelerate.commands.launch",
    "torch_npu",
    "deepspeed",
)


def _accepts(source: Source) -> float:
    if not source.is_text or not source.is_whole:
        return 0.0
    if source.path.suffix in _SUFFIXES or _SHEBANG.match(source.text):
        return 0.9
    return 0.4 if _FLAG.search(source.text) and _STARTS.search(source.text) else 0.0


@reader("megatron-shell", accepts=_accepts)
def read(source: Source) -> Given:
    """A shell script that starts a program with flags, as Megatron-LM's examples do.

    Variables, arrays, `${name:-default}`, quotes, continuations, `if`, `case`, `for`, functions and whole-number
    arithmetic are followed. Nothing is executed: what comes from a command, from the machine or from arguments of the
    script is not known, and is said to be so.
    """
    script = follow(source.text, str(source.path), source.name)
    lines = [found for words in script.commands if (found := command_line(_opened(words))) is not None]
    notes = list(script.notes)
    line = _main(lines, source, script, notes)
    name = max(_PROGRAMS, key=lambda each: _n_known(line, each, source.name))
    program = tuple(entries_of(line.words, table(name), source.name, notes))
    if not program:
        raise ConfigurationError(
            "no flags of a training program are in this script", where=str(source.path),
            why=f"what it starts: {line.program or 'nothing in Python'}; {'; '.join(notes)}"[:500],
            fix="give the script that has the flags, or the log with the arguments",
        )  # fmt: skip
    ignored: list[str] = []
    launcher = tuple(entries_of(line.launcher, table("launcher"), source.name, ignored))
    exports = tuple(_export(name, value, source.name) for name, value in sorted(script.exports.items()))
    alongside = (
        Given(kind="launcher", table="launcher", entries=launcher),
        Given(kind="environment", table="environment", entries=exports),
    )
    return Given(
        kind=_PROGRAMS[name], table=name, entries=program, notes=tuple(notes),
        alongside=tuple(each for each in alongside if each.entries),
    )  # fmt: skip


def _main(lines: list[CommandLine], source: Source, script: Script, notes: list[str]) -> CommandLine:
    """Return the command with the most flags; when there is no command, the flags of all variables."""
    if lines:
        best = max(lines, key=lambda line: len(line.words))
        others = [line.program for line in lines if line is not best and line.program != best.program]
        if others:
            notes.append(f"{source.name}: also starts {', '.join(dict.fromkeys(others))}, which is not looked at")
        return best
    words = [word for value in script.variables.values() for field in value for word in split_again(field)]
    starts = [i for i, word in enumerate(words) if word.text.startswith("--")]
    if starts:
        notes.append(f"{source.name}: no program is started in it: the flags of all its variables are taken")
    return CommandLine(words=tuple(words[starts[0] :] if starts else ()))


def _opened(words: tuple[Field, ...]) -> tuple[Field, ...]:
    """Split words that hold a command of their own: `msrun_launcher.sh "run_mindformer.py --config x"`."""
    return tuple(part for word in words for part in (split_again(word) if ".py " in word.text else (word,)))


def _n_known(line: CommandLine, name: str, file: str) -> int:
    known = table(name)
    return sum(known.knows(entry.key) for entry in entries_of(line.words, known, file, []))


def _export(name: str, value: Field, file: str) -> Entry:
    return Entry(
        key=name, value=plain(literal(value.text)), spelled=f"export {name}={value.text}"[:300],
        where=f"{file}:{value.line}" if value.line else file, is_resolved=value.is_known,
    )  # fmt: skip


@dataclass(slots=True, kw_only=True)
class CommandLine:
    """A command that starts a program: the words before the program, its name, and those behind it."""

    launcher: tuple[Field, ...] = ()
    program: str = ""
    words: tuple[Field, ...] = field(default=())


def command_line(words: tuple[Field, ...]) -> CommandLine | None:
    """Return the parts of a command; None when it starts no Python program."""
    texts = [word.text for word in words]
    for i, text in enumerate(texts):
        if text.endswith(".py") and not text.startswith("-"):
            return CommandLine(launcher=words[:i], program=text, words=words[i + 1 :])
        if text == "-m" and i + 1 < len(texts) and not texts[i + 1].startswith(_LAUNCHING):
            return CommandLine(launcher=words[:i], program=texts[i + 1], words=words[i + 2 :])
        if i and text in ("sft", "train", "pretrain") and not texts[i - 1].startswith("-"):
            return CommandLine(launcher=words[:i], program=text, words=words[i + 1 :])
    return None


def entries_of(words: tuple[Field, ...], table: Table, name: str, notes: list[str]) -> Iterator[Entry]:
    """Yield the flags among these words, by their keys in the table.

    Args:
        words: of a command, behind the program.
        table: says which flags take no value, and which stand for another key.
        name: of the file, for places.
        notes: added to: words of which cannot be told what they hold, or that belong to no flag.
    """
    at = 0
    while at < len(words):
        match = _FLAG_AND_VALUE.match(words[at].text) if words[at].runs and words[at].runs[0].is_known else None
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
            if is_switch and words[at].text.lower() not in ("true", "false"):
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
    return bool(word.runs) and word.runs[0].is_known and _FLAG_AND_VALUE.match(word.text) is not None


def _left(word: Field, name: str) -> str:
    why = "belongs to no flag" if word.is_known else "comes from outside of the script: flags in it are not known"
    return f"{name}:{word.line}: {word.text[:100]} {why}"
