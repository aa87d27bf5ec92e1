"""`hypocenter.error/1`: an error as JSON, for whoever asked for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal

from msgspec import Meta, Struct

from hypocenter.errors import HypocenterError


class ErrorAnswer(Struct, frozen=True, kw_only=True):
    """Why a command that was asked for JSON has no answer. The exit code is the one it has without --json."""

    schema: Literal["hypocenter.error/1"] = "hypocenter.error/1"
    status: Literal["error"] = "error"
    slug: Annotated[str, Meta(pattern="^[a-z]+(-[a-z]+)*$", description="the kind of error, the same in every version")]
    what: Annotated[str, Meta(description="what went wrong, in one line")]
    where: Annotated[str, Meta(description="file, option or site that it is about; empty if none")]
    why: Annotated[str, Meta(description="the reason, as far as it is known; empty if not")]
    fix: Annotated[str, Meta(description="what to type or to change; empty if nothing is known")]


def answer(error: HypocenterError) -> ErrorAnswer:
    """The same words as the frame on stderr; a part that is not known is the empty text."""
    return ErrorAnswer(slug=error.slug, what=error.what, where=error.where, why=error.why, fix=error.fix)


def is_asked_for(words: Sequence[str]) -> bool:
    """Whether a command line asks for JSON: `--json`, or `--format json`.

    Args:
        words: those that are ours; none of a program that we run.
    """
    return "--json" in words or "--format=json" in words or ("--format", "json") in pairwise(words)
