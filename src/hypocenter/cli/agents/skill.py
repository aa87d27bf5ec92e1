"""SKILL.md: what an agent should know, with commands, codes and words as the code has them."""

from __future__ import annotations

from importlib import resources
from typing import get_args

import jinja2

from hypocenter import nouns
from hypocenter.cli.agents.tools import TOOLS
from hypocenter.cli.exit_codes import MEANINGS
from hypocenter.cli.group import commands_by_group


def skill() -> str:
    """Return the whole file: front matter with name and description, then Markdown."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    template = resources.files("hypocenter.cli.agents").joinpath("skill.md.j2").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        groups=commands_by_group(),
        codes=MEANINGS,
        tools=[tool.command for tool in TOOLS],
        statuses=get_args(nouns.Status),
        confidences=get_args(nouns.Confidence),
        severities=get_args(nouns.Severity),
        n_causes=len(nouns.CAUSES),
    )
