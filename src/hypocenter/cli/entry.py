"""From a command line to an exit code: the one place where exceptions become words."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Annotated, Literal

import click
from msgspec import Meta, Struct

from hypocenter.cli.group import did_you_mean, hypocenter
from hypocenter.cli.say import say
from hypocenter.cli.waiting import shown_while_waiting
from hypocenter.errors import ConfigError, HypocenterError
from hypocenter.json_answer import to_json
from hypocenter.report.screen import NobodyReads, send_nowhere, write

INTERNAL = 3  # a bug in Hypocenter
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
_TALK_THEMSELVES = {"run", "align", "determinism", "doctor", "replay", "cure", "view"}  # or start programs that do
UNREAD = 141  # 128 + SIGPIPE: what a shell shows of `git log | head`


class UsageError(HypocenterError):
    """A command line that cannot be understood: an argument is missing, or one too many."""

    slug = "usage"


class InternalError(HypocenterError):
    """The error that is shown when something else than a HypocenterError was raised: a bug."""

    slug = "internal"
    exit_code = INTERNAL


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; what a command returns as an int is its code.

    An error is a frame on stderr, and JSON on stdout for whoever asked for JSON. When the reader of stdout goes away
    (`| head`), the command ends without a word, with the code of a program that SIGPIPE ended.

    Args:
        argv: without the program's name; `sys.argv[1:]` when None.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        return _run(words)
    except NobodyReads:
        send_nowhere(sys.stdout)
        return UNREAD


def _run(words: list[str]) -> int:
    waits = bool(words) and words[0] not in _TALK_THEMSELVES
    try:
        with shown_while_waiting(f"hypocenter {words[0]}") if waits else nullcontext():
            outcome = hypocenter.main(args=words, prog_name="hypocenter", standalone_mode=False)
        return outcome if isinstance(outcome, int) and not isinstance(outcome, bool) else 0
    except HypocenterError as error:
        return _show(error, words)
    except click.UsageError as error:
        return _show(_in_our_words(error), words)
    except click.ClickException as error:
        return _show(UsageError(error.format_message()), words)
    except click.exceptions.Abort:
        say("interrupted")
        return INTERRUPTED
    except Exception as error:
        return _show(_internal(error, words), words)


def _show(error: HypocenterError, words: Sequence[str]) -> int:
    say(str(error))
    if is_json_asked_for(hypocenter.own_words(words)):
        write(sys.stdout, to_json(error_answer(error)))
    return error.exit_code


def _in_our_words(error: click.UsageError) -> HypocenterError:
    path = error.ctx.command_path if error.ctx else "hypocenter"
    if isinstance(error, click.NoSuchOption):
        known = [name for p in error.ctx.command.params for name in p.opts + p.secondary_opts] if error.ctx else []
        return ConfigError(
            f"unknown option {error.option_name!r}",
            where=path,
            fix=did_you_mean(error.option_name, known, otherwise=f"see `{path} --help` for all options"),
        )
    message = error.format_message().rstrip(".")
    return UsageError(message[:1].lower() + message[1:], where=path, fix=f"see `{path} --help`")


def _internal(error: Exception, argv: Sequence[str]) -> HypocenterError:
    if os.environ.get("HYPOCENTER_TRACEBACK"):
        import traceback

        traceback.print_exception(error)
    return InternalError(
        f"{type(error).__name__}: {error}",
        where=shlex.join(["hypocenter", *argv]),
        why="this is a bug in Hypocenter, not in your program",
        fix="please report it, with what this command prints when HYPOCENTER_TRACEBACK=1 is set",
    )


class ErrorAnswer(Struct, frozen=True, kw_only=True):
    """Why a command that was asked for JSON has no answer. The exit code is the one it has without --json."""

    schema: Literal["hypocenter.error/1"] = "hypocenter.error/1"
    status: Literal["error"] = "error"
    slug: Annotated[str, Meta(pattern="^[a-z]+(-[a-z]+)*$", description="the kind of error, the same in every version")]
    what: Annotated[str, Meta(description="what went wrong, in one line")]
    where: Annotated[str, Meta(description="file, option or site that it is about; empty if none")]
    why: Annotated[str, Meta(description="the reason, as far as it is known; empty if not")]
    fix: Annotated[str, Meta(description="what to type or to change; empty if nothing is known")]


def error_answer(error: HypocenterError) -> ErrorAnswer:
    """Return the answer with the words of the frame on stderr; a part that is not known is the empty text."""
    return ErrorAnswer(slug=error.slug, what=error.what, where=error.where, why=error.why, fix=error.fix)


def is_json_asked_for(words: Sequence[str]) -> bool:
    """Return whether a command line asks for JSON: `--json`, or `--format json`.

    Args:
        words: those that are ours; none of a program that we run.
    """
    return "--json" in words or "--format=json" in words or ("--format", "json") in pairwise(words)
