"""Every command line that docs/from-msprobe.md and docs/ascend.md name exists, with its options and their choices."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from hypocenter.checklist.tables import table
from hypocenter.cli import hypocenter

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = (DOCS / "from-msprobe.md", DOCS / "ascend.md")


def spans() -> list[str]:
    found: list[str] = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        found += [
            *re.findall(r"`([^`\n]+)`", text),
            *re.findall(r"^ {4}(hypocenter [^#\n]+?) *(?:#.*)?$", text, re.MULTILINE),
        ]
    return found


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that words name, and what is left of them."""
    context = click.Context(hypocenter)
    command: click.Command = hypocenter
    while isinstance(command, click.Group) and words:
        found = command.get_command(context, words[0])
        assert found is not None, words
        command, words = found, words[1:]
    return command, words


def options_of(command: click.Command) -> dict[str, click.Option]:
    options = [p for p in command.params if isinstance(p, click.Option)]
    return {name: option for option in options for name in (*option.opts, *option.secondary_opts)}


def test_the_page_is_no_empty_promise() -> None:
    assert sum(span.startswith("hypocenter ") for span in spans()) > 40


@pytest.mark.parametrize("line", sorted({span for span in spans() if span.startswith("hypocenter ")}))
def test_a_command_line_of_the_page_parses(line: str) -> None:
    command, words = command_of(shlex.split(line)[1:])
    known = options_of(command)

    for word, following in zip(words, [*words[1:], ""], strict=False):
        if word == "train.py":
            break
        if word.startswith("-"):
            assert word in known, f"{line}: {command.name} has no {word}"
            kind = known[word].type
            if isinstance(kind, click.Choice) and not known[word].is_flag:
                assert following in kind.choices, f"{line}: {word} {following}"


@pytest.mark.parametrize(
    "option", sorted({w for s in spans() if s.startswith("--") for w in s.split() if w[:2] == "--"})
)
def test_an_option_that_stands_alone_is_one_of_some_command(option: str) -> None:
    theirs = {"--backend"} | {f"--{key.replace('_', '-')}" for key in table("megatron").joined.keys}
    commands = [hypocenter.get_command(click.Context(hypocenter), name) for name in hypocenter.list_commands(None)]  # type: ignore[arg-type]

    assert option in theirs or any(option in options_of(command) for command in commands if command)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([\w./-]+\.md)", page.read_text(encoding="utf-8"))

    assert targets
    assert [target for target in targets if not (DOCS / target).is_file()] == []
