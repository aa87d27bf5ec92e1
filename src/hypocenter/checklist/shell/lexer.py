"""Words and operators of a script, with quotes, continuations, comments and expansions as bash reads them."""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from dataclasses import dataclass

from hypocenter.checklist.shell.syntax import Arithmetic, Parameter, Piece, ShellError, Substitution, Text, Word

OPERATORS = (";;&", ";;", ";&", "&&", "||", "|&", "&>>", "&>", "<<<", "<<-", "<<", ">>", ">&", "<&", ">|", "<>",
             ";", "&", "|", "(", ")", "<", ">", "\n")  # fmt: skip
_REDIRECTIONS = ("&>>", "&>", "<<<", ">>", ">&", "<&", ">|", "<>", "<", ">")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_BRACED = re.compile(r"(#?)([A-Za-z_]\w*|[0-9]+|[@*#?$!-])(\[[^\]]*\])?(:[-=+?]|[-=+?])?")
_PLACEHOLDER = re.compile(r"<[A-Za-z][^<>\n]*(?<!\s)>")
_DEPTH = 40


@dataclass(frozen=True, slots=True)
class Token:
    """A word, or an operator (`word` is None)."""

    line: int
    operator: str = ""
    word: Word | None = None
    is_glued: bool = False  # an operator right behind a word: `NAME=(`


class Lexer:
    """One script. Raises ShellError when quotes or brackets do not close.

    Args:
        text: of the script.
        where: its path, for errors.
        line: of its first character.
        lines: of text that was put together of several places: (offset, line) from which on it is of that line.
    """

    def __init__(self, text: str, where: str, line: int = 1, lines: Sequence[tuple[int, int]] = ()) -> None:
        self.text, self.where, self.at, self.line = text, where, 0, line
        self._offsets, self._lines_of = [offset for offset, _ in lines], [line for _, line in lines]
        self.depth = 0
        self._documents: list[tuple[str, bool]] = []  # here-documents that begin behind the next line break

    def tokens(self) -> list[Token]:
        """Return all tokens, without redirections and comments."""
        found: list[Token] = []
        while (token := self._token()) is not None:
            if token.operator in _REDIRECTIONS:
                self._target(found)
            elif token.operator in ("<<", "<<-"):
                self._begin_document(token)
            else:
                found.append(token)
        return found

    def error(self, why: str, line: int | None = None) -> ShellError:
        """Return the error at a line, the present one when none is given."""
        return ShellError(
            "the shell script cannot be read", where=f"{self.where}:{line or self.line}", why=why,
            fix="bash -n SCRIPT says whether bash can read it",
        )  # fmt: skip

    def _token(self) -> Token | None:
        is_glued = self._skip_blanks()
        if self._offsets:
            self.line = self._lines_of[max(0, bisect.bisect_right(self._offsets, self.at) - 1)]
        if self.at >= len(self.text):
            return None
        for operator in OPERATORS:
            if self.text.startswith(operator, self.at) and not (operator == "<" and self._placeholder([])):
                token = Token(line=self.line, operator=operator, is_glued=is_glued)
                self.at += len(operator)
                if operator == "\n":
                    self.line += 1
                    self._skip_documents()
                return token
        line = self.line
        return Token(line=line, word=self.word())

    def _skip_blanks(self) -> bool:
        """Skip blanks, comments and continued lines; return whether there were none."""
        start = self.at
        while self.at < len(self.text):
            char = self.text[self.at]
            if self.text.startswith(("\\\n", "\\\r\n"), self.at):
                self.at += 2 if self.text[self.at + 1] == "\n" else 3
                self.line += 1
            elif char in " \t\r":
                self.at += 1
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                break
        return self.at == start

    def _target(self, found: list[Token]) -> None:
        if found and found[-1].word is not None and self._is_number(found[-1].word):
            found.pop()  # the 2 of 2>log
        self._skip_blanks()
        if self.at < len(self.text) and self.text[self.at] not in "\n;&|()<>":
            self.word()

    @staticmethod
    def _is_number(word: Word) -> bool:
        return len(word) == 1 and isinstance(word[0], Text) and word[0].text in ("0", "1", "2") and not word[0].quoted

    def _begin_document(self, token: Token) -> None:
        self._skip_blanks()
        word = self.word() if self.at < len(self.text) and self.text[self.at] not in "\n;&|()<>" else ()
        self._documents.append(
            ("".join(piece.text for piece in word if isinstance(piece, Text)), token.operator == "<<-")
        )

    def _skip_documents(self) -> None:
        for end, is_indented in self._documents:
            while self.at < len(self.text):
                stop = self.text.find("\n", self.at)
                stop = len(self.text) if stop < 0 else stop
                line = self.text[self.at : stop].rstrip("\r")
                self.at = min(stop + 1, len(self.text))
                self.line += 1
                if (line.lstrip("\t") if is_indented else line) == end:
                    break
        self._documents = []

    def word(self, stops: str = " \t\r\n;&|()<>", *, in_quotes: bool = False) -> Word:
        """Read the pieces up to a character of `stops` that is not quoted; that character stays."""
        self.depth += 1
        if self.depth > _DEPTH:
            raise self.error("nested too deep")
        pieces: list[Piece] = []
        literal: list[str] = []

        def flush(quoted: bool = in_quotes) -> None:
            if literal:
                pieces.append(Text("".join(literal), self.line, quoted))
                literal.clear()

        while self.at < len(self.text):
            char = self.text[self.at]
            match = self._placeholder(literal) if char == "<" and "<" in stops else None
            if char in stops and match is None:
                break
            if match is not None:
                flush()
                pieces.append(Substitution(match[0], self.line, True))
                self.at = match.end()
            elif char == "\\":
                self._escape(literal, flush, pieces, in_quotes)
            elif char == "'" and not in_quotes:
                flush()
                self._single(pieces)
            elif char == '"':
                flush()
                self._double(pieces)
            elif char in "$`":
                flush()
                self._expansion(pieces, literal, in_quotes)
            else:
                literal.append(char)
                self.at += 1
                if char == "\n":
                    flush()
                    self.line += 1
        flush()
        self.depth -= 1
        return tuple(pieces)

    def _placeholder(self, literal: list[str]) -> re.Match[str] | None:
        """Match a hole that somebody has to fill (`NAME=<Specify path>`, `--load <PATH>`): no redirection."""
        match = _PLACEHOLDER.match(self.text, self.at)
        return match if match and (literal[-1:] == ["="] or match[0][1].isupper()) else None

    def _escape(self, literal: list[str], flush: object, pieces: list[Piece], in_quotes: bool) -> None:
        after = self.text[self.at + 1 : self.at + 2]
        if self.text.startswith("\\\r\n", self.at):
            after, self.at = "\n", self.at + 1
        self.at += 2
        if after == "\n":
            flush()  # type: ignore[operator]
            self.line += 1
        elif in_quotes and after not in '$`"\\':
            literal += ["\\", after]
        else:
            flush()  # type: ignore[operator]
            pieces.append(Text(after, self.line, True))

    def _single(self, pieces: list[Piece]) -> None:
        start = self.line
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise self.error("a single quote does not close", start)
        self._lines(pieces, self.text[self.at + 1 : end])
        self.at = end + 1

    def _lines(self, pieces: list[Piece], text: str) -> None:
        """Add quoted text, one piece a line; an empty text stays as a piece, as it makes a word."""
        for i, part in enumerate(text.split("\n")):
            self.line += 1 if i else 0
            pieces.append(Text(("\n" if i else "") + part, self.line, True))

    def _double(self, pieces: list[Piece]) -> None:
        start = self.line
        self.at += 1
        inside = self.word('"', in_quotes=True)
        if self.at >= len(self.text):
            raise self.error("a double quote does not close", start)
        self.at += 1
        pieces += inside or (Text("", self.line, True),)

    def _expansion(self, pieces: list[Piece], literal: list[str], quoted: bool) -> None:
        start, line = self.at, self.line
        if self.text[start] == "`":
            end = self.text.find("`", start + 1)
            if end < 0:
                raise self.error("a backquote does not close", line)
            self.at = end + 1
            self.line += self.text.count("\n", start, end)
            pieces.append(Substitution(self.text[start : self.at], line, quoted))
        elif self.text.startswith("$((", start):
            self.at += 3
            word = self._until_closed("))")
            pieces.append(Arithmetic(word, line, quoted, self.text[start : self.at]))
        elif self.text.startswith("$(", start):
            self.at += 2
            self._until_closed(")")
            pieces.append(Substitution(self.text[start : self.at], line, quoted))
        elif self.text.startswith("${", start):
            pieces.append(self._braced(line, quoted))
        elif self.text.startswith("$'", start) and not quoted:
            self.at += 1
            self._single(pieces)
        elif match := _NAME.match(self.text, start + 1):
            self.at = match.end()
            pieces.append(Parameter(match[0], line, quoted, source="$" + match[0]))
        else:
            literal.append("$")
            self.at += 1

    def _until_closed(self, end: str) -> Word:
        """Read the word up to and with `end`, with brackets inside it in pairs."""
        line, pieces, n_open = self.line, list[Piece](), 0
        while self.at < len(self.text):
            pieces += self.word("()")
            if self.at >= len(self.text):
                break
            if n_open == 0 and self.text.startswith(end, self.at):
                self.at += len(end)
                return tuple(pieces)
            char = self.text[self.at]
            n_open += 1 if char == "(" else -1
            if n_open < 0:
                raise self.error("brackets do not match", line)
            pieces.append(Text(char, self.line, False))
            self.at += 1
        raise self.error("a bracket does not close", line)

    def _braced(self, line: int, quoted: bool) -> Parameter:
        start = self.at
        match = _BRACED.match(self.text, start + 2)
        self.at = match.end() if match else start + 2
        word = self.word("}", in_quotes=quoted)
        if self.at >= len(self.text):
            raise self.error("a brace does not close", line)
        self.at += 1
        source = self.text[start : self.at]
        if match is None or (word and not match[4]) or (match[1] and match[4]):
            return Parameter("", line, quoted, source=source)  # ${name%suffix}, ${name//a/b}, ${!name}: not followed
        operator = "#" if match[1] else match[4] or ""
        return Parameter(match[2], line, quoted, operator, (match[3] or "")[1:-1], word, source)
