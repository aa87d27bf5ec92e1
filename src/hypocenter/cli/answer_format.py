"""`--format` and `--json` of every command that reads something: one choice, one way from the answer to its text."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from hypocenter.report.answer.rendering import FORMATS, render
from hypocenter.report.screen import Screen, screen_of, write

Command = Callable[..., Any]
A = TypeVar("A")


def format_option(*, others: str = "") -> Callable[[Command], Command]:
    """Give a command its parameter `format_name`: terminal, json, html, markdown or github.

    Args:
        others: formats beside these, for the help; names are then checked by whoever renders.
    """
    kind = None if others else click.Choice(FORMATS)
    text = f"{', '.join(FORMATS)}, {others}." if others else "How the answer is shown."
    chosen = click.option(
        "--format", "format_name", type=kind, default="terminal", show_default=True, help=text,
        metavar="NAME" if others else None,
    )  # fmt: skip
    as_json = click.option(
        "--json", "format_name", flag_value="json", default="terminal", help="Same as --format json; nothing is cut."
    )
    return lambda command: chosen(as_json(command))


def show_answer(command: str, answer: A, format_name: str, on_screen: Callable[[A, Screen], str]) -> None:
    """Print an answer, in any format.

    Args:
        command: as for `print_answer`.
        on_screen: what a person reads of it, at the format "terminal".
    """
    if format_name == "terminal":
        write(sys.stdout, on_screen(answer, screen_of(sys.stdout)))
    else:
        print_answer(command, answer, format_name)


def print_answer(command: str, answer: Any, format_name: str) -> None:
    """Print an answer, in any format but that of the screen.

    Args:
        command: the words after `hypocenter`.
        answer: a typed answer, or a mapping with its keys.
    """
    write(sys.stdout, render(command, answer, format_name))
