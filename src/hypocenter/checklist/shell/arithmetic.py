"""$(( ... )) of whole numbers: a small calculator, without anything that could run or grow without end."""

from __future__ import annotations

import re
from collections.abc import Callable

_TOKEN = re.compile(r"\s*(?:(0[xX][0-9a-fA-F]+|\d+)|([A-Za-z_]\w*)|(\*\*|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%()<>!~?:]))")
_LIMIT = 1 << 63  # bash counts in 64 bits
_AT_MOST = 500  # tokens
_LEVELS = (("||",), ("&&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"), ("*", "/", "%"))


class NotANumber(Exception):
    """The expression has no number that can be told."""


def calculate(text: str, value_of: Callable[[str], str | None]) -> int:
    """The number of an expression.

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
        """The value of what binds at least as tightly as this level."""
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
