"""The click group: commands are the files of `cli/commands`, listed without importing them."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import click

from hypocenter._version import __version__
from hypocenter.errors import UnknownNameError

COMMANDS = Path(__file__).with_name("commands")
_FIRST_DOCSTRING_LINE = re.compile(r'\A\s*r?"""(?:`[^`]*`:\s*)?(.+?)\s*(?:"""|\n|\Z)')


class CommandFolder(click.Group):
    """A group whose commands are files; `--help` reads the first line of each, nothing is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the files, sorted, as they are typed."""
        return sorted(_typed(path.stem) for path in COMMANDS.glob("*.py") if not path.stem.startswith("_"))

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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table of `hypocenter --help`."""
        rows = [(name, one_line_help(name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def did_you_mean(typed: str, known: list[str], *, otherwise: str) -> str:
    """`did you mean 'check'?`, or the other hint when nothing is near."""
    import difflib

    close = difflib.get_close_matches(typed, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else otherwise


def one_line_help(name: str) -> str:
    """First line of the docstring of a command's file, read as text. A leading "`hypocenter check`:" is left out."""
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
