"""The click group: commands are the files of `cli/commands`, listed without importing them."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from hypocenter._version import __version__
from hypocenter.errors import UnknownNameError
from hypocenter.report.screen import NobodyReads

COMMANDS = Path(__file__).with_name("commands")
GROUPS = {
    "Find what broke": ("run", "runs", "check", "show", "report", "explain"),
    "Prove it, mend it": ("replay", "cure"),
    "See how a run is doing": ("view", "health", "spikes", "relations", "headroom", "fleet"),
    "Compare with what should be the same": (
        "diff", "isolate", "curves", "weights", "checklist", "twin", "determinism", "align",
    ),
    "For agents": ("mcp", "skill"),
    "Around it": ("doctor", "import", "export", "ship", "list", "schema"),
}  # fmt: skip
"""Commands by what one wants, in the order in which one comes to them."""
_LAST_GROUP = "Around it"
_NAME_COLUMN = 13  # columns of the longest name, and two
_FIRST_DOCSTRING_LINE = re.compile(r'\A\s*r?"""(?:`[^`]*`:\s*)?(.+?)\s*(?:"""|\n|\Z)')


class CommandFolder(click.Group):
    """A group whose commands are files; `--help` reads the first line of each, nothing is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the files, sorted, as they are typed."""
        return _names()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the file of this command; None when there is no such file."""
        if cmd_name not in self.list_commands(ctx):
            return None
        stem = next(p.stem for p in COMMANDS.glob("*.py") if _typed(p.stem) == cmd_name)
        return import_module(f"hypocenter.cli.commands.{stem}").command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of the first argument; an unknown one names the nearest."""
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-"):
            raise UnknownNameError(
                f"no command {args[0]!r}",
                where="the command line",
                fix=did_you_mean(args[0], known, otherwise="see `hypocenter --help` for all commands"),
            )
        return super().resolve_command(ctx, args)

    def own_words(self, words: Sequence[str]) -> Sequence[str]:
        """Return the words that are ours: `run` and its like end in the command line of another program."""
        from hypocenter.cli.program import ProgramCommand

        command = None
        with suppress(Exception):  # a command that cannot be loaded has no program
            command = self.get_command(click.Context(self), words[0])
        return command.own_words(words[1:]) if isinstance(command, ProgramCommand) else words

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Do as click; `--help | head` ends as any other command does whose reader goes away."""
        with _reader_may_leave():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Do as click; `check --help | head` ends as any other command does whose reader goes away."""
        with _reader_may_leave():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the tables of `hypocenter --help`."""
        for title, commands in commands_by_group().items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()), col_spacing=_NAME_COLUMN - max(map(len, commands)))


@contextmanager
def _reader_may_leave() -> Generator[None, None, None]:
    """Raise NobodyReads where click prints and its reader goes away: click would end with code 1."""
    try:
        yield
    except BrokenPipeError as error:
        raise NobodyReads from error


def did_you_mean(typed: str, known: list[str], *, otherwise: str) -> str:
    """Return `did you mean 'check'?`, or the other hint when nothing is near."""
    import difflib

    close = difflib.get_close_matches(typed, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else otherwise


def commands_by_group() -> dict[str, dict[str, str]]:
    """Return the tables of `hypocenter --help`: a line per command; commands without a group come last."""
    known = _names()
    named = {name for names in GROUPS.values() for name in names}
    groups = {**GROUPS, _LAST_GROUP: (*GROUPS[_LAST_GROUP], *(name for name in known if name not in named))}
    found = {title: {name: one_line_help(name) for name in names if name in known} for title, names in groups.items()}
    return {title: commands for title, commands in found.items() if commands}


def _names() -> list[str]:
    return sorted(_typed(path.stem) for path in COMMANDS.glob("*.py") if not path.stem.startswith("_"))


def one_line_help(name: str) -> str:
    """Return the first line of a command file's docstring, read as text, without "`hypocenter check`:"."""
    path = next(p for p in COMMANDS.glob("*.py") if _typed(p.stem) == name)
    match = _FIRST_DOCSTRING_LINE.match(path.read_text(encoding="utf-8")[:1000])
    line = match[1].rstrip(".") if match else ""
    return line[:1].lower() + line[1:] if line[1:2].islower() else line  # HTML stays HTML


def _typed(stem: str) -> str:
    return stem.rstrip("_").replace("_", "-")


@click.group(cls=CommandFolder, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hypocenter", message="%(prog)s %(version)s")
def hypocenter() -> None:
    """Name where a training run broke numerically, why, and prove the cure."""
