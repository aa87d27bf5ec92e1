"""A script followed from top to bottom as far as it can be told without running it: its commands and exports."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field

from hypocenter.checklist.shell.expansion import AT_MOST_CHARACTERS, Field, Run, Scope
from hypocenter.checklist.shell.parser import parse
from hypocenter.checklist.shell.syntax import (
    Assignment,
    Case,
    Chain,
    Command,
    Function,
    If,
    Loop,
    ShellError,
    Simple,
    spelled,
)  # fmt: skip

_AT_MOST_COMMANDS = 20_000
_AT_MOST_TURNS = 64  # of a loop
_AT_MOST_ELEMENTS = 20_000  # of an array
_DEPTH = 12  # of functions that call each other, and of scripts within quotes
_DECLARING = {"export", "declare", "local", "readonly", "typeset"}
_TALKING = {"echo", "printf", "log", "cat", "which"}
_SHELLS = {"sh", "bash", "/bin/bash", "/bin/sh", "zsh"}
_NUMBERS = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}


@dataclass(slots=True)
class Script:
    """What a script does, as far as it can be told."""

    commands: list[tuple[Field, ...]] = field(default_factory=list["tuple[Field, ...]"])
    exports: dict[str, Field] = field(default_factory=dict[str, Field])
    notes: list[str] = field(default_factory=list[str])
    variables: dict[str, tuple[Field, ...]] = field(default_factory=dict[str, "tuple[Field, ...]"])


def follow(text: str, path: str, name: str) -> Script:
    """Follow a script. `path` is told in errors, `name` in notes.

    Raises:
        ShellError: it cannot be read, or does not end.
    """
    script = Script()
    follower = _Follower(script, path, name)
    try:
        follower.body(parse(text, path))
    except (RecursionError, OverflowError) as error:
        raise ShellError(
            "the shell script does not end", where=path, why=str(error), fix="give a log instead"
        ) from error
    script.variables = follower.scope.variables
    return script


class _Follower:
    def __init__(self, script: Script, path: str, name: str) -> None:
        self.script, self.path, self.name = script, path, name
        self.scope = Scope(tell=self._note, where=name)
        self.functions: dict[str, Function] = {}
        self.depth, self.n = 0, 0

    def body(self, commands: tuple[Command, ...]) -> None:
        for command in commands:
            self._command(command)

    def _command(self, command: Command) -> bool | None:
        """Follow a command; return whether it succeeds, None when that cannot be told."""
        self.n += 1
        if self.n > _AT_MOST_COMMANDS:
            raise OverflowError(f"more than {_AT_MOST_COMMANDS:,} commands")
        match command:
            case Simple():
                return self._simple(command)
            case Chain():
                return self._chain(command)
            case If():
                self._if(command)
            case Loop():
                self._loop(command)
            case Case():
                self._case(command)
            case Function():
                self.functions[command.name] = command
        return None

    def _chain(self, chain: Chain) -> bool | None:
        found: bool | None = None
        for operator, command in zip(("", *chain.operators), chain.commands, strict=False):
            if (operator == "&&" and found is False) or (operator == "||" and found is True):
                continue
            if operator == "||" and found is None and self._is_guard(command):
                continue  # `cd there || exit`: what follows a failure of something unknown is not followed
            found = self._command(command)
        return found

    @staticmethod
    def _is_guard(command: Command) -> bool:
        return isinstance(command, Simple) and not command.assignments

    def _if(self, command: If) -> None:
        for condition, body in command.branches:
            found = self._condition(condition)
            if found is None:
                text = "; ".join(self._spelled(part) for part in condition)
                self._note(
                    f"{self.name}:{command.line}: whether {text or 'the condition'} holds cannot be told from the "
                    f"script: lines {command.line} to {command.last_line} are left out"
                )
                return
            if found:
                self.body(body)
                return
        self.body(command.otherwise)

    def _condition(self, commands: tuple[Command, ...]) -> bool | None:
        if len(commands) != 1:
            return None
        command = commands[0]
        if isinstance(command, Chain):
            found: bool | None = True
            for operator, inner in zip(("", *command.operators), command.commands, strict=False):
                this = self._condition((inner,))
                found = this if not operator else _combined(operator, found, this)
            return found
        if not isinstance(command, Simple) or command.assignments:
            return None
        first = command.words[0] if command.words else ()
        if spelled(first) == "!":
            inner = self._condition((Simple(words=command.words[1:], line=command.line),))
            return None if inner is None else not inner
        # within [[ ]] words are not split; within [ ] an empty one would vanish, and the writer did not mean that
        return holds(tuple(self.scope.single(word) for word in command.words))

    def _loop(self, command: Loop) -> None:
        if not command.name:
            self._note(
                f"{self.name}:{command.line}: a loop is not followed: lines {command.line} to {command.last_line} "
                "are left out"
            )
            return
        values = [field for word in command.words for field in self.scope.fields(word)][:_AT_MOST_TURNS]
        for value in values:
            self.scope.variables[command.name] = (value,)
            self.body(command.body)

    def _case(self, command: Case) -> None:
        subject = self.scope.single(command.word)
        for patterns, body in command.arms:
            words = [self.scope.single(pattern) for pattern in patterns]
            if not subject.is_known or any(not word.is_known for word in words):
                break
            if any(fnmatch.fnmatchcase(subject.text, word.text) for word in words):
                self.body(body)
                return
        else:
            return
        self._note(
            f"{self.name}:{command.line}: the case of {spelled(command.word)} cannot be told from the script: lines "
            f"{command.line} to {command.last_line} are left out"
        )

    def _simple(self, command: Simple) -> bool | None:
        head = spelled(command.words[0]) if command.words else ""
        if not command.words or head in _DECLARING:
            for assignment in command.assignments:
                self._assign(assignment)
                if head == "export":
                    self._export(assignment.name)
            for word in command.words[1:]:
                if head == "export":
                    self._export(spelled(word))
            return True
        for assignment in command.assignments:  # NAME=value command: for that command alone
            self.script.exports[assignment.name] = self.scope.single(assignment.word or ())
        fields = tuple(field for word in command.words for field in self.scope.fields(word))
        return self._run(fields, command)

    def _run(self, fields: tuple[Field, ...], command: Simple) -> bool | None:
        if not fields:
            return None
        head, line = fields[0].text, fields[0].line
        if head in ("[", "[[", "test", "true", "false", ":"):
            return self._condition((command,))
        if head in self.functions and self.depth < _DEPTH:
            self._call(self.functions[head], fields)
        elif head in ("source", "."):
            other = fields[1].text if len(fields) > 1 else "?"
            self._note(f"{self.name}:{line}: {other} is not read: give it as a file of its own")
        elif head == "unset":
            for word in fields[1:]:
                self.scope.variables.pop(word.text, None)
        elif head not in _TALKING:
            self._collect(fields)
        return None

    def _call(self, function: Function, fields: tuple[Field, ...]) -> None:
        numbers = {str(i): (value,) for i, value in enumerate(fields[1:], 1)}
        given = {**numbers, "@": tuple(fields[1:]), "*": tuple(fields[1:])}
        before = {name: self.scope.variables.get(name) for name in given}
        self.scope.variables.update(given)
        self.depth += 1
        self.body(function.body)
        self.depth -= 1
        for name, value in before.items():
            if value is None:
                self.scope.variables.pop(name, None)
            else:
                self.scope.variables[name] = value

    def _collect(self, fields: tuple[Field, ...]) -> None:
        """Keep a command that may start the training; follow a script that is handed to a shell in quotes."""
        words = [field.text for field in fields]
        for i, word in enumerate(words[:-1]):
            if word in _SHELLS and "-c" in words[i + 1 : i + 4]:
                inner = fields[words.index("-c", i) + 1] if words.index("-c", i) + 1 < len(fields) else None
                if inner is not None and self.depth < _DEPTH:
                    self._inside(inner)
                return
        if words[0] == "eval":
            fields = fields[1:]
        self.script.commands.append(fields)

    def _inside(self, text: Field) -> None:
        """Split text that another shell reads, and follow its commands, each part on its own line."""
        if all(run.is_known for run in text.runs) and not any(char in text.text for char in "'\"$;&|()`<>"):
            self.script.commands.append(split_again(text))
            return
        masked, holes, lines = _masked(text)
        self.depth += 1
        kept = dict(self.scope.variables)
        try:
            for i, hole in enumerate(holes):
                self.scope.variables[f"_{i}_not_known"] = (Field((hole,)),)
            self.body(parse(masked, self.path, max(1, text.line), lines))
        finally:
            self.scope.variables = kept
            self.depth -= 1

    def _assign(self, assignment: Assignment) -> None:
        if assignment.name.endswith("[]"):
            self._note(f"{self.name}:{assignment.line}: one element of {assignment.name[:-2]} is set: not followed")
            return
        variables = self.scope.variables
        before = variables.get(assignment.name, ())
        if assignment.array is not None:
            added = tuple(field for word in assignment.array for field in self.scope.fields(word))
            if len(before) + len(added) > _AT_MOST_ELEMENTS:
                raise OverflowError("an array grows without end")
            variables[assignment.name] = (*before, *added) if assignment.appends else added
        else:
            value = self.scope.single(assignment.word or ())
            if assignment.appends and before:
                value = Field((*before[-1].runs, *value.runs))
                if len(value.text) > AT_MOST_CHARACTERS:
                    raise OverflowError("a variable grows without end")
            variables[assignment.name] = (value,)

    def _export(self, name: str) -> None:
        value = self.scope.variables.get(name)
        if value:
            self.script.exports[name] = value[0]

    @staticmethod
    def _spelled(command: Command) -> str:
        if isinstance(command, Simple):
            return " ".join(spelled(word) for word in command.words)
        if isinstance(command, Chain):
            return " ".join(_Follower._spelled(inner) for inner in command.commands)
        return "the condition"

    def _note(self, text: str) -> None:
        if text not in self.script.notes and len(self.script.notes) < 100:
            self.script.notes.append(text)


def _combined(operator: str, left: bool | None, right: bool | None) -> bool | None:
    decides = operator == "||"
    if decides in (left, right):
        return decides
    return None if None in (left, right) else not decides


def split_again(text: Field) -> tuple[Field, ...]:
    """Split a field at its blanks, each part on its own line."""
    found: list[list[Run]] = []
    ends_blank = True
    for run in text.runs:
        for i, part in enumerate(run.text.split()):
            if i == 0 and not ends_blank and not run.text[:1].isspace():
                found[-1].append(Run(part, run.line))
            else:
                found.append([Run(part, run.line)])
        ends_blank = run.text[-1:].isspace() if run.text else ends_blank
    return tuple(Field(tuple(runs)) for runs in found)


def _masked(text: Field) -> tuple[str, list[Run], list[tuple[int, int]]]:
    """Return the text with variables for parts that are not known, these parts, and the (offset, line) of all."""
    holes: list[Run] = []
    parts: list[str] = []
    lines: list[tuple[int, int]] = []
    offset = 0
    for run in text.runs:
        lines.append((offset, run.line))
        if run.is_known:
            parts.append(run.text)
        else:
            parts.append(f"${{_{len(holes)}_not_known}}")
            holes.append(run)
        offset += len(parts[-1])
    return "".join(parts), holes, lines


def holds(fields: tuple[Field, ...]) -> bool | None:
    """Return whether the condition of a command holds; None when that cannot be told."""
    words = [field.text for field in fields]
    if words == ["true"] or words == [":"]:
        return True
    if words == ["false"]:
        return False
    if not words or words[0] not in ("[", "[[", "test"):
        return None
    inside = list(fields[1:])
    if words[0] != "test":
        if words[-1] not in ("]", "]]"):
            return None
        inside = inside[:-1]
    return _joined(inside, ("||", "-o"), _all, True)


def _all(fields: list[Field]) -> bool | None:
    return _joined(fields, ("&&", "-a"), _single, False)


def _joined(fields: list[Field], operators: tuple[str, ...], inner: object, decides: bool) -> bool | None:
    parts: list[list[Field]] = [[]]
    for each in fields:
        if each.text in operators:
            parts.append([])
        else:
            parts[-1].append(each)
    found = [inner(part) for part in parts]  # type: ignore[operator]
    if decides in found:
        return decides
    return None if None in found else not decides


def _single(fields: list[Field]) -> bool | None:
    if fields and fields[0].text == "!":
        inner = _single(fields[1:])
        return None if inner is None else not inner
    if any(not field.is_known for field in fields):
        return None
    words = [field.text for field in fields]
    match words:
        case []:
            return False
        case [text]:
            return bool(text)
        case ["-z", text]:
            return not text
        case ["-n", text]:
            return bool(text)
        case [left, "=" | "==", right]:
            return fnmatch.fnmatchcase(left, right)
        case [left, "!=", right]:
            return not fnmatch.fnmatchcase(left, right)
        case [left, operator, right] if operator in _NUMBERS:
            return _compared(left, operator, right)
        case _:
            return None  # -f, -d and others ask the machine


def _compared(left: str, operator: str, right: str) -> bool | None:
    try:
        a, b = int(left), int(right)
    except ValueError:
        return None
    return {"-eq": a == b, "-ne": a != b, "-lt": a < b, "-le": a <= b, "-gt": a > b, "-ge": a >= b}[operator]
