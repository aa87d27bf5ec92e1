"""A command that ends in the command line of another program, such as `hypocenter run`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from hypocenter.cli.config_options import spelled_out


class ProgramCommand(click.Command):
    """Options end at PROGRAM, and `-m` begins it: what follows is the program's, whatever it looks like."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split the words before click sees them, so that no option of the program can be taken for ours."""
        at = self._program_starts(args)
        return super().parse_args(ctx, [*args[:at], "--", *args[at:]] if at < len(args) else args)

    def own_words(self, args: Sequence[str]) -> list[str]:
        """The words before PROGRAM."""
        words = list(args)
        return words[: self._program_starts(words)]

    def _program_starts(self, args: list[str]) -> int:
        """Index of the first word of PROGRAM: `-m`, or the first word that is neither an option nor its value."""
        takes_value = {name for p in self.params if isinstance(p, click.Option) and not p.is_flag for name in p.opts}
        at = 0
        while at < len(args) and args[at].startswith("-") and not args[at].startswith("-m"):
            if args[at] == "--":
                del args[at]
                return at
            args[at] = spelled_out(args, at)
            at += 2 if args[at] in takes_value else 1
        return at
