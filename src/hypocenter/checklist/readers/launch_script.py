"""Shell scripts that start a training: Megatron-LM's flags, those of TrainingArguments, the launcher's, exports."""

from __future__ import annotations

import re

from hypocenter.checklist.catalogue import Source, reader
from hypocenter.checklist.entry import ConfigurationError, Entry, Given
from hypocenter.checklist.flags import CommandLine, command_line, entries
from hypocenter.checklist.shell.expansion import Field
from hypocenter.checklist.shell.follow import Script, follow, split_again
from hypocenter.checklist.tables import table
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
    program = tuple(entries(line.words, table(name), source.name, notes))
    if not program:
        raise ConfigurationError(
            "no flags of a training program are in this script", where=str(source.path),
            why=f"what it starts: {line.program or 'nothing in Python'}; {'; '.join(notes)}"[:500],
            fix="give the script that has the flags, or the log with the arguments",
        )  # fmt: skip
    ignored: list[str] = []
    launcher = tuple(entries(line.launcher, table("launcher"), source.name, ignored))
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
    """The command with the most flags; the flags of all variables when there is no command."""
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
    """Words with those split that hold a command of their own: `msrun_launcher.sh "run_mindformer.py --config x"`."""
    return tuple(part for word in words for part in (split_again(word) if ".py " in word.text else (word,)))


def _n_known(line: CommandLine, name: str, file: str) -> int:
    known = table(name)
    return sum(known.knows(entry.key) for entry in entries(line.words, known, file, []))


def _export(name: str, value: Field, file: str) -> Entry:
    return Entry(
        key=name, value=plain(literal(value.text)), spelled=f"export {name}={value.text}"[:300],
        where=f"{file}:{value.line}" if value.line else file, is_resolved=value.is_known,
    )  # fmt: skip
