"""Words as bash would hand them to a command: variables, arrays and defaults filled in, split at blanks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hypocenter.checklist.shell.arithmetic import NotANumber, calculate
from hypocenter.checklist.shell.syntax import Arithmetic, Parameter, Piece, Substitution, Text, Word

AT_MOST_CHARACTERS = 1 << 18  # of all that is filled in for one word: variables that double each other end here
_ALL = ("@", "*")
_BLANKS = " \t\n\r"


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of text from one line; not known: it comes from outside of the script."""

    text: str
    line: int
    is_known: bool = True


@dataclass(frozen=True, slots=True)
class Field:
    """One word of a command."""

    runs: tuple[Run, ...]

    @property
    def text(self) -> str:
        """All of it; what is not known as it stands in the script."""
        return "".join(run.text for run in self.runs)

    @property
    def line(self) -> int:
        """Where it begins."""
        return self.runs[0].line if self.runs else 0

    @property
    def is_known(self) -> bool:
        """Whether all of it is."""
        return all(run.is_known for run in self.runs)


Value = tuple[Field, ...]  # of a variable: one field, or the elements of an array


@dataclass(slots=True)
class Scope:
    """The variables so far, and what there is to tell about how they were filled in."""

    variables: dict[str, Value] = field(default_factory=dict[str, Value])
    tell: Callable[[str], None] = lambda _: None
    where: str = ""

    def fields(self, word: Word) -> tuple[Field, ...]:
        """A word as a command gets it: none, one or several fields."""
        found: list[list[Run]] = []
        is_open = False
        size = 0
        for text, splits, starts in self._streams(word):
            size += 1 + sum(len(run.text) for run in text)
            _require(size)
            if starts and is_open:
                is_open = False
            if not splits:
                found = found if is_open else [*found, []]
                is_open = True
                found[-1] += text
                continue
            for run in text:
                for part, is_blank in _split(run):
                    if is_blank:
                        is_open = False
                    else:
                        found = found if is_open else [*found, []]
                        is_open = True
                        found[-1].append(part)
        return tuple(Field(tuple(runs)) for runs in found)

    def single(self, word: Word) -> Field:
        """A word as an assignment takes it: not split."""
        runs = [run for text, _, _ in self._streams(word) for run in text]
        _require(sum(len(run.text) for run in runs))
        return Field(tuple(runs))

    def known_text(self, name: str) -> str | None:
        """The text of a variable; None when it or a part of it is not known."""
        value = self.variables.get(name)
        if value is None or len(value) != 1 or not value[0].is_known:
            return None
        return value[0].text

    def _streams(self, word: Word) -> Iterator[tuple[list[Run], bool, bool]]:
        """(text, whether it is split at blanks, whether it begins a new field) of each piece."""
        for piece in word:
            is_all = isinstance(piece, Parameter) and (piece.index in _ALL or piece.name in _ALL)
            if is_all and isinstance(piece, Parameter) and not piece.operator and piece.name in self.variables:
                for i, element in enumerate(self.variables[piece.name]):
                    yield list(element.runs), not piece.quoted, i > 0
            else:
                yield self._runs(piece), not piece.quoted and not isinstance(piece, Text), False

    def _runs(self, piece: Piece) -> list[Run]:
        if isinstance(piece, Text):
            return [Run(piece.text, piece.line)]
        if isinstance(piece, Arithmetic):
            return [self._number(piece)]
        if isinstance(piece, Substitution):
            return [Run(piece.source, piece.line, False)]
        return self._parameter(piece)

    def _number(self, piece: Arithmetic) -> Run:
        inside = self.single(piece.word)
        try:
            if not inside.is_known:
                raise NotANumber(piece.source)
            return Run(str(calculate(inside.text, self.known_text)), piece.line)
        except NotANumber:
            return Run(piece.source, piece.line, False)

    def _parameter(self, piece: Parameter) -> list[Run]:
        value = self.variables.get(piece.name) if piece.name else None
        if piece.operator == "#" or not piece.name:
            known = self.known_text(piece.name) if piece.name and not piece.index else None
            if piece.operator == "#" and value is not None and piece.index in _ALL:
                return [Run(str(len(value)), piece.line)]
            return [Run(piece.source, piece.line, False) if known is None else Run(str(len(known)), piece.line)]
        is_set = value is not None and (not piece.operator.startswith(":") or any(f.text for f in value))
        if piece.operator[-1:] == "+":
            return list(self.single(piece.word).runs) if is_set else []
        if not is_set and piece.operator[-1:] in ("-", "="):
            return self._default(piece)
        if value is None:
            return [Run(piece.source, piece.line, False)]
        return list(self._element(piece, value).runs)

    def _default(self, piece: Parameter) -> list[Run]:
        found = self.single(piece.word)
        if piece.name not in self.variables:
            name = f"${piece.name}" if piece.name.isdigit() else piece.name
            self.tell(f"{self.where}:{piece.line}: {name} is not set in the script: {found.text!r} is taken")
        if piece.operator[-1:] == "=":
            self.variables[piece.name] = (found,)
        return list(found.runs)

    @staticmethod
    def _element(piece: Parameter, value: Value) -> Field:
        if not piece.index:
            return value[0] if value else Field(())
        try:
            return value[int(piece.index)]
        except (ValueError, IndexError):
            return Field((Run(piece.source, piece.line, False),))


def _split(run: Run) -> Iterator[tuple[Run, bool]]:
    """The words and blanks of a stretch of text; what is not known stays whole."""
    if not run.is_known:
        yield run, False
        return
    start = 0
    for at, char in enumerate(run.text):
        if char in _BLANKS:
            if at > start:
                yield Run(run.text[start:at], run.line), False
            yield run, True
            start = at + 1
    if start < len(run.text):
        yield Run(run.text[start:], run.line), False


def _require(n_characters: int) -> None:
    if n_characters > AT_MOST_CHARACTERS:
        raise OverflowError("a variable grows without end")
