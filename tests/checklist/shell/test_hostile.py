"""Damaged and hostile scripts end in an error of our own, or in notes, and never in anything executed."""

from __future__ import annotations

import contextlib
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.checklist.shell.follow import follow
from hypocenter.checklist.shell.syntax import ShellError

WORDS = "if then fi else elif for in do done case esac while { } ( ) ;; | && < > function [[ ]] EOF x # A= A=("
OPENING = "$( ${ $(( )) ` ' \" \\ $A ${A[@]} <<EOF"
PIECES = st.sampled_from([*WORDS.split(" "), *OPENING.split(" "), "\n", " "])


def is_read_where_it_is_harmless(text: str) -> bool:
    """Whether the same text, quoted and as a comment, is taken for what it is."""
    comment = " ".join(text.splitlines())
    (command,) = follow(f"show {shlex.quote(text)} # {comment}\n", "x.sh", "x.sh").commands
    return [field.text for field in command] == ["show", text]


TEXT = st.text(st.characters(exclude_characters="\0\r", exclude_categories=["Cs"]), max_size=80)


@settings(max_examples=600, deadline=None)
@given(st.lists(PIECES, max_size=25).map(" ".join) | TEXT)
def test_any_text(text: str) -> None:
    with contextlib.suppress(ShellError):
        follow(text, "x.sh", "x.sh")

    assert is_read_where_it_is_harmless(text)


@pytest.mark.parametrize(
    "text",
    ["(" * 5000, "$(" * 5000, "if true; then " * 5000, "A=" + "${A:-" * 5000, '"$(' * 3000, "{ " * 5000, "f() " * 5000,
     "f() { f; f; }; f", "A=x\n" + "A=$A$A$A$A\n" * 30, "A=(x)\n" + 'A+=("${A[@]}")\n' * 40,
     "for a in " + "x " * 64 + "; do " + ("for b in " + "y " * 64 + "; do ") * 3 + "z; done; " * 3 + "done"],
)  # fmt: skip
def test_scripts_without_end(text: str) -> None:
    with contextlib.suppress(ShellError):
        follow(text, "x.sh", "x.sh")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\nb 'c\n", 2),
        ('a\n\nb "c\n', 3),
        ("a\nb $(c\n", 2),
        ("A=(1\n2\n", 1),
        ("if true; then\nb\n", 3),
        ("a ${b\n", 1),
    ],
)
def test_an_error_names_the_line(text: str, line: int) -> None:
    with pytest.raises(ShellError) as caught:
        follow(text, "x.sh", "x.sh")

    assert caught.value.where in (f"x.sh:{line}", f"x.sh:{line - 1}")
    assert caught.value.fix
