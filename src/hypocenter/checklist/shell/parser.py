"""The commands of a script out of its words and operators."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hypocenter.checklist.shell.lexer import Lexer, Token
from hypocenter.checklist.shell.syntax import Assignment, Case, Chain, Command, Function, If, Loop, Simple, Text, Word

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=")
_ENDS = {"then", "elif", "else", "fi", "do", "done", "esac", "}", ")"}
_DECLARING = {"export", "declare", "local", "readonly", "typeset"}
_DEPTH = 60
_Body = tuple[Command, ...]


def parse(text: str, where: str, line: int = 1, lines: Sequence[tuple[int, int]] = ()) -> _Body:
    """Return the commands. Raises ShellError: quotes, brackets or branches do not close. Arguments: see Lexer."""
    return _Parser(Lexer(text, where, line, lines)).body(())


class _Parser:
    def __init__(self, lexer: Lexer) -> None:
        self.lexer, self.tokens, self.at, self.depth = lexer, lexer.tokens(), 0, 0

    def body(self, ends: tuple[str, ...]) -> _Body:
        """Read commands up to one of these words, which stays; with none, to the end of the script."""
        self.depth += 1
        if self.depth > _DEPTH:
            raise self.lexer.error("nested too deep", self._line())
        found: list[Command] = []
        while True:
            self._skip(("\n", ";", "&", ";;", ";&", ";;&") if ";;" not in ends else ("\n", ";", "&"))
            if self.at >= len(self.tokens):
                if ends:
                    raise self.lexer.error(f"{' or '.join(ends)} is missing", self._line())
                break
            head = self._peek()
            if head in ends:
                break
            if head in _ENDS and not ends:
                self.at += 1  # a stray end: bash would not run this script; what else it says still counts
                continue
            if head in _ENDS:
                raise self.lexer.error(f"{head} where {' or '.join(ends)} is expected", self._line())
            found.append(self._chain())
        self.depth -= 1
        return tuple(found)

    def _chain(self) -> Command:
        commands, operators = [self._command()], list[str]()
        while self.at < len(self.tokens) and self.tokens[self.at].operator in ("&&", "||", "|", "|&"):
            operators.append(self.tokens[self.at].operator)
            self.at += 1
            self._skip(("\n",))
            if self.at >= len(self.tokens):
                break
            commands.append(self._command())
        return commands[0] if len(commands) == 1 else Chain(commands=tuple(commands), operators=tuple(operators))

    def _command(self) -> Command:
        head, line = self._peek(), self._line()
        if head == "if":
            return self._if(line)
        if head in ("for", "select"):
            return self._for(line)
        if head in ("while", "until"):
            self.at += 1
            self.body(("do",))
            return self._loop("", (), line)
        if head == "case":
            return self._case(line)
        if head == "{" or (self.tokens[self.at].operator == "(" and not self._is_double()):
            self.at += 1
            body = self.body(("}" if head == "{" else ")",))
            self.at += 1
            return Chain(commands=body, operators=(";",) * max(0, len(body) - 1))
        if head == "function":
            self.at += 1
            name = self._take_word()
            return self._function(name)
        if "=" not in head and head and self._is_function():
            self.at += 1
            return self._function(head)
        return self._simple(line)

    def _function(self, name: str) -> Function:
        self._skip(("(", ")", "\n"))
        command = self._command() if self.at < len(self.tokens) else Simple()
        return Function(name=name, body=(command,))

    def _if(self, line: int) -> If:
        branches: list[tuple[_Body, _Body]] = []
        otherwise: _Body = ()
        while True:
            self.at += 1  # if or elif
            condition = self.body(("then",))
            self.at += 1
            branches.append((condition, self.body(("elif", "else", "fi"))))
            if self._peek() != "elif":
                break
        if self._peek() == "else":
            self.at += 1
            otherwise = self.body(("fi",))
        last = self._line()
        self.at += 1
        return If(branches=tuple(branches), otherwise=otherwise, line=line, last_line=last)

    def _for(self, line: int) -> Loop:
        self.at += 1
        words: list[Word] = []
        name = self._take_word()
        self._skip(("\n",))
        if self._peek() == "in":
            self.at += 1
            while self.at < len(self.tokens) and (word := self.tokens[self.at].word) is not None:
                words.append(word)
                self.at += 1
        while self.at < len(self.tokens) and self._peek() != "do":
            self.at += 1  # also for (( ; ; ))
        return self._loop(name, tuple(words), line)

    def _loop(self, name: str, words: tuple[Word, ...], line: int) -> Loop:
        self.at += 1  # do
        body = self.body(("done",))
        last = self._line()
        self.at += 1
        return Loop(name=name, words=words, body=body, line=line, last_line=last)

    def _case(self, line: int) -> Case:
        self.at += 1
        word = self._word()
        self._skip(("\n",))
        if self._peek() == "in":
            self.at += 1
        arms: list[tuple[tuple[Word, ...], _Body]] = []
        while True:
            self._skip(("\n", ";;", ";&", ";;&", "("))
            if self.at >= len(self.tokens):
                raise self.lexer.error("esac is missing", line)
            if self._peek() == "esac":
                break
            patterns: list[Word] = []
            while self.at < len(self.tokens) and self.tokens[self.at].operator != ")":
                token = self.tokens[self.at]
                patterns += [token.word] if token.word is not None else []
                self.at += 1
            self.at += 1
            arms.append((tuple(patterns), self.body((";;", ";&", ";;&", "esac"))))
        last = self._line()
        self.at += 1
        return Case(word=word, arms=tuple(arms), line=line, last_line=last)

    def _simple(self, line: int) -> Simple:
        assignments: list[Assignment] = []
        words: list[Word] = []
        if self.tokens[self.at].operator == "(":
            self._brackets()  # (( ... )): arithmetic as a command
            return Simple(words=((Text("((", line, True),),), line=line)
        if self._peek() == "[[":
            return Simple(words=self._double_brackets(line), line=line)
        while self.at < len(self.tokens) and (word := self.tokens[self.at].word) is not None:
            declares = bool(words) and _head(words[0]) in _DECLARING
            token = self.tokens[self.at]
            self.at += 1
            assigned = _assigned(word) if not words or declares else None
            if assigned is None:
                words.append(word)
            else:
                assignments.append(self._assignment(assigned, word, token.line))
        if not words and not assignments:
            self.at += 1  # an operator where a command is expected
        return Simple(assignments=tuple(assignments), words=tuple(words), line=line)

    def _double_brackets(self, line: int) -> tuple[Word, ...]:
        """Read [[ ... ]], in which && and || are words of the condition."""
        words: list[Word] = []
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            self.at += 1
            words.append(token.word if token.word is not None else (Text(token.operator, token.line, False),))
            if _head(words[-1]) == "]]":
                return tuple(words)
        raise self.lexer.error("]] is missing", line)

    def _assignment(self, match: re.Match[str], word: Word, line: int) -> Assignment:
        first = word[0]
        assert isinstance(first, Text)
        rest = first.text[match.end() :]
        value = ((Text(rest, first.line, False),) if rest else ()) + word[1:]
        name, appends = match[1], bool(match[3])
        if match[2]:
            return Assignment(name=f"{name}[]", line=line, word=value)  # one element: not followed
        array = None
        if not value and self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token.operator == "(" and token.is_glued:
                array = self._array()
        return Assignment(name=name, line=line, word=value, array=array, appends=appends)

    def _array(self) -> tuple[Word, ...]:
        line = self._line()
        self.at += 1
        words: list[Word] = []
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            self.at += 1
            if token.operator == ")":
                return tuple(words)
            words += [token.word] if token.word is not None else []
        raise self.lexer.error("an array does not close", line)

    def _brackets(self) -> None:
        line, n_open = self._line(), 0
        while self.at < len(self.tokens):
            operator = self.tokens[self.at].operator
            n_open += (operator == "(") - (operator == ")")
            self.at += 1
            if n_open == 0:
                return
        raise self.lexer.error("a bracket does not close", line)

    def _is_double(self) -> bool:
        after = self.tokens[self.at + 1] if self.at + 1 < len(self.tokens) else None
        return after is not None and after.operator == "(" and after.is_glued

    def _is_function(self) -> bool:
        pair = self.tokens[self.at + 1 : self.at + 3]
        return [token.operator for token in pair] == ["(", ")"]

    def _skip(self, operators: tuple[str, ...]) -> None:
        while self.at < len(self.tokens) and self.tokens[self.at].operator in operators:
            self.at += 1

    def _peek(self) -> str:
        if self.at >= len(self.tokens):
            return ""
        token: Token = self.tokens[self.at]
        return _head(token.word) if token.word is not None else token.operator

    def _word(self) -> Word:
        word = self.tokens[self.at].word if self.at < len(self.tokens) else None
        self.at += 1
        return word or ()

    def _take_word(self) -> str:
        return _head(self._word())

    def _line(self) -> int:
        if not self.tokens:
            return self.lexer.line
        return self.tokens[min(self.at, len(self.tokens) - 1)].line


def _head(word: Word) -> str:
    """Return the word when it is plain text without quotes, else ""."""
    if len(word) != 1 or not isinstance(word[0], Text) or word[0].quoted:
        return ""
    return word[0].text


def _assigned(word: Word) -> re.Match[str] | None:
    first = word[0] if word else None
    return _ASSIGNED.match(first.text) if isinstance(first, Text) and not first.quoted else None
