"""Words as bash would hand them to a command: variables, arrays and defaults filled in, split at blanks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hypocenter.checklist.shell.syntax import Arithmetic, Parameter, Piece, Substitution, Text, Word

AT_MOST_CHARACTERS = 1 << 18  # of all that is filled in for one word: variables that double each other end here
_ALL = ("@", "*")
_BLANKS = " \t\n\r"
_TOKEN = re.compile(r"\s*(?:(0[xX][0-9a-fA-F]+|\d+)|([A-Za-z_]\w*)|(\*\*|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%()<>!~?:]))")
_LIMIT = 1 << 63  # bash counts in 64 bits
_AT_MOST = 500  # tokens
_LEVELS = (("||",), ("&&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"), ("*", "/", "%"))


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of text from one line; it is not known when it comes from outside of the script."""

    text: str
    line: int
    is_known: bool = True


@dataclass(frozen=True, slots=True)
class Field:
    """One word of a command."""

    runs: tuple[Run, ...]

    @property
    def text(self) -> str:
        """The text of the word; parts that are not known as they stand in the script."""
        return "".join(run.text for run in self.runs)

    @property
    def line(self) -> int:
        """The line where the word begins."""
        return self.runs[0].line if self.runs else 0

    @property
    def is_known(self) -> bool:
        """Whether all parts of the word are known."""
        return all(run.is_known for run in self.runs)


Value = tuple[Field, ...]  # of a variable: one field, or the elements of an array


@dataclass(slots=True)
class Scope:
    """The variables so far, and what there is to tell about how they were filled in."""

    variables: dict[str, Value] = field(default_factory=dict[str, Value])
    tell: Callable[[str], None] = lambda _: None
    where: str = ""

    def fields(self, word: Word) -> tuple[Field, ...]:
        """Expand a word as a command gets it: to none, one or several fields."""
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
        """Expand a word as an assignment takes it: not split."""
        runs = [run for text, _, _ in self._streams(word) for run in text]
        _require(sum(len(run.text) for run in runs))
        return Field(tuple(runs))

    def known_text(self, name: str) -> str | None:
        """Return the text of a variable; None when it or a part of it is not known."""
        value = self.variables.get(name)
        if value is None or len(value) != 1 or not value[0].is_known:
            return None
        return value[0].text

    def _streams(self, word: Word) -> Iterator[tuple[list[Run], bool, bool]]:
        """Yield (text, whether it is split at blanks, whether it begins a new field) of each piece."""
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
    """Yield the words and blanks of a stretch of text (True: a blank); what is not known stays whole."""
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


class NotANumber(Exception):
    """The expression has no value that can be told."""


def calculate(text: str, value_of: Callable[[str], str | None]) -> int:
    """Return the value of an arithmetic expression.

    Args:
        text: without the brackets around it, and with `$name` already replaced.
        value_of: the text of a variable; None when it is not known.

    Raises:
        NotANumber: it is no arithmetic, or has a variable that is not known, or leaves 64 bits.
    """
    calculator = _Calculator(_tokens(text), value_of)
    found = calculator.level(0)
    if calculator.at != len(calculator.tokens):
        raise NotANumber(text)
    return found


def _tokens(text: str) -> list[str]:
    found: list[str] = []
    at = 0
    text = text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or len(found) >= _AT_MOST:
            raise NotANumber(text[:100])
        found.append(match[1] or match[2] or match[3])
        at = match.end()
    return found


class _Calculator:
    def __init__(self, tokens: list[str], value_of: Callable[[str], str | None]) -> None:
        self.tokens, self.value_of, self.at, self.depth = tokens, value_of, 0, 0

    def level(self, level: int) -> int:
        """Return the value of what binds at least as tightly as this level."""
        if level == len(_LEVELS):
            return self._power()
        left = self.level(level + 1)
        while self._next() in _LEVELS[level]:
            operator = self._take()
            left = _checked(_apply(operator, left, self.level(level + 1)))
        return left

    def _power(self) -> int:
        base = self._unary()
        if self._next() != "**":
            return base
        self._take()
        exponent = self._power()
        if not 0 <= exponent < 64 or abs(base) > 1 << 32:
            raise NotANumber("**")
        return _checked(base**exponent)

    def _unary(self) -> int:
        self.depth += 1
        if self.depth > 100:
            raise NotANumber("nested too deep")
        token = self._take()
        if token in ("-", "+", "!"):
            inner = self._unary()
            value = -inner if token == "-" else inner if token == "+" else int(not inner)
        elif token == "(":
            value = self.level(0)
            if self._take() != ")":
                raise NotANumber("(")
        elif token[:1].isdigit():
            value = _integer(token)
        else:
            value = self._variable(token)
        self.depth -= 1
        return value

    def _variable(self, name: str) -> int:
        text = self.value_of(name) if name.isidentifier() else None
        if text is None or not re.fullmatch(r"\s*-?\d{1,18}\s*", text):
            raise NotANumber(name)
        return int(text)

    def _next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _take(self) -> str:
        token = self._next()
        if not token:
            raise NotANumber("it ends too early")
        self.at += 1
        return token


def _integer(token: str) -> int:
    base = 16 if token[:2].lower() == "0x" else 8 if token[0] == "0" and len(token) > 1 else 10
    try:
        return _checked(int(token[:40], base))
    except ValueError as error:  # 08
        raise NotANumber(token) from error


def _apply(operator: str, left: int, right: int) -> int:
    if operator in ("/", "%"):
        if right == 0:
            raise NotANumber("a division by zero")
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)  # bash rounds towards zero
        return quotient if operator == "/" else left - quotient * right
    if operator in ("<<", ">>"):
        if not 0 <= right < 64:
            raise NotANumber(operator)
        return left << right if operator == "<<" else left >> right
    simple: dict[str, Callable[[], int]] = {
        "+": lambda: left + right, "-": lambda: left - right, "*": lambda: left * right,
        "<": lambda: int(left < right), ">": lambda: int(left > right), "<=": lambda: int(left <= right),
        ">=": lambda: int(left >= right), "==": lambda: int(left == right), "!=": lambda: int(left != right),
        "&&": lambda: int(bool(left and right)), "||": lambda: int(bool(left or right)),
    }  # fmt: skip
    return simple[operator]()


def _checked(value: int) -> int:
    if abs(value) >= _LIMIT:
        raise NotANumber("more than 64 bits")
    return value
