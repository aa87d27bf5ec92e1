"""SKILL.md says what the code says: commands, flags, exit codes, tools, words."""

from __future__ import annotations

import re
import shlex

import click
import pytest
import yaml
from recordings import run

from hypocenter import errors
from hypocenter.cli import hypocenter
from hypocenter.cli.agents.skill import skill
from hypocenter.cli.agents.tools import TOOLS
from hypocenter.cli.exit_codes import MEANINGS
from hypocenter.cli.group import commands_by_group

COMMAND = re.compile(r"`(hypocenter [^`]+)`")


def test_front_matter_says_what_it_is_and_when_to_use_it() -> None:
    said = run("skill")
    _, front, body = said.out.split("---\n", 2)
    matter = yaml.safe_load(front)

    assert said.code == 0
    assert set(matter) == {"name", "description"}
    assert matter["name"] == "hypocenter"
    assert 50 < len(matter["description"]) <= 1024  # what readers of such files take
    assert body.startswith("\n# Hypocenter\n")


def test_every_command_exit_code_and_tool_is_told() -> None:
    text = skill()

    names = {name for commands in commands_by_group().values() for name in commands}
    assert names == set(hypocenter.list_commands(click.Context(hypocenter)))
    assert all(f"- `hypocenter {name}`: " in text for name in names)
    assert all(f"| {code} | {means} |" in text for code, means in MEANINGS.items())
    assert all(f"`{tool.command}`" in text for tool in TOOLS)


def test_every_exit_code_has_a_meaning() -> None:
    codes = {
        error.exit_code for error in vars(errors).values() if isinstance(error, type) and hasattr(error, "exit_code")
    }
    for commands in commands_by_group().values():
        for name in commands:
            command = hypocenter.get_command(click.Context(hypocenter), name)
            module = __import__(command.callback.__module__, fromlist=["EXIT"]) if command.callback else None
            codes |= set(getattr(module, "EXIT", {}).values())

    assert codes <= set(MEANINGS)


@pytest.mark.parametrize("line", sorted(set(COMMAND.findall(skill()))))
def test_every_command_in_it_can_be_typed(line: str) -> None:
    """click takes it: the command is there and so are its flags; what they would do is not done."""
    words = shlex.split(line.replace("...", "x"))[1:]
    if words[0].isupper():  # `hypocenter COMMAND --help`
        return
    command = hypocenter.get_command(click.Context(hypocenter), words[0])
    assert command is not None
    if len(words) > 1:
        command.make_context(words[0], words[1:])
