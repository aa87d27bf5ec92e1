"""`hypocenter skill`: what an agent should know to use Hypocenter, as a SKILL.md."""

from __future__ import annotations

import sys

import click

from hypocenter.cli.agents.skill import skill
from hypocenter.report.screen import write


@click.command("skill")
def command() -> None:
    """Print a SKILL.md: which command when, how to read an answer, what the exit codes mean, what not to do.

    Put it where your agent looks for skills, such as skills/hypocenter/SKILL.md.
    """
    write(sys.stdout, skill())
