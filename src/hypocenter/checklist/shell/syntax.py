"""The tree of a script: words with their parts, commands, branches and loops, each with its line."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypocenter.checklist.checklist import ConfigurationError


class ShellError(ConfigurationError):
    """A script whose quotes or brackets do not close, or that is too deep or too long."""


@dataclass(frozen=True, slots=True)
class Text:
    """Literal text of one line."""

    text: str
    line: int
    quoted: bool


@dataclass(frozen=True, slots=True)
class Parameter:
    """$name, ${name}, ${name[@]}, ${name:-word}; `name` is "" when it is a form that is not followed."""

    name: str
    line: int
    quoted: bool
    operator: str = ""  # "-", ":-", "=", ":=", "+", ":+", "#" (length)
    index: str = ""
    word: tuple[Piece, ...] = ()
    source: str = ""  # as it stands in the script


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """$(( ... ))."""

    word: tuple[Piece, ...]
    line: int
    quoted: bool
    source: str


@dataclass(frozen=True, slots=True)
class Substitution:
    """$( ... ) or backquotes: never executed, so its text is not known."""

    source: str
    line: int
    quoted: bool


Piece = Text | Parameter | Arithmetic | Substitution
Word = tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """NAME=word, NAME+=word, NAME=( words )."""

    name: str
    line: int
    word: Word | None = None
    array: tuple[Word, ...] | None = None
    appends: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Simple:
    """A command: assignments, then words."""

    assignments: tuple[Assignment, ...] = ()
    words: tuple[Word, ...] = ()
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class If:
    """Conditions with their bodies; `otherwise` when none holds."""

    branches: tuple[tuple[tuple[Command, ...], tuple[Command, ...]], ...]
    otherwise: tuple[Command, ...] = ()
    line: int = 0
    last_line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """for NAME in words, or while and until (no name)."""

    name: str
    words: tuple[Word, ...]
    body: tuple[Command, ...]
    line: int
    last_line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """case word in patterns) body;; esac."""

    word: Word
    arms: tuple[tuple[tuple[Word, ...], tuple[Command, ...]], ...]
    line: int
    last_line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """name() { body }."""

    name: str
    body: tuple[Command, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Commands joined by && and ||: the operators between them."""

    commands: tuple[Command, ...]
    operators: tuple[str, ...] = field(default=())


Command = Simple | If | Loop | Case | Function | Chain


def spelled(word: Word) -> str:
    """Return a word as it stands in the script, without its quotes."""
    return "".join(piece.text if isinstance(piece, Text) else piece.source for piece in word)
