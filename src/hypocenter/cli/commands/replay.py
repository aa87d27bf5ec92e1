"""`hypocenter replay BUNDLE`: show a failure again, in a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import click
from msgspec import Meta, Struct

from hypocenter.cli.answer_format import format_option, print_answer
from hypocenter.errors import BundleError, HypocenterError
from hypocenter.record.layout import EVIDENCE_FILE

EXIT = {"failed-again": 0, "not-again": 1}


@click.command("replay")
@click.argument("bundle", type=click.Path(path_type=Path))
@format_option()
def command(bundle: Path, format_name: str) -> int:
    """Execute the operator that failed again, from the inputs kept in BUNDLE.

    Needs torch, in a process of its own. Exit code: 0 the failure shows again, 1 it does not, 2 there is no torch, 4
    the bundle cannot be used.
    """
    if not bundle.is_dir():
        raise BundleError(
            "there is no bundle",
            where=str(bundle),
            why="it is not a directory",
            fix=f"give a folder that holds {EVIDENCE_FILE}, such as RUN/rank-00000/bundles/NAME",
        )
    if format_name != "terminal":
        found = replayed(bundle)
        print_answer("replay", found, format_name)
        return EXIT[found.status]
    words = [sys.executable, "-m", "hypocenter.replay", str(bundle)]
    return subprocess.run(words, check=False).returncode


class Replayed(Struct, frozen=True, kw_only=True):
    """Whether the operator of a bundle, executed again from its kept inputs, gives values that are not finite."""

    schema: Literal["hypocenter.replay/1"] = "hypocenter.replay/1"
    status: Annotated[
        Literal["failed-again", "not-again"], Meta(description="The failure shows again, or not. Exit codes 0, 1.")
    ]
    sentence: str
    bundle: str
    op: Annotated[str, Meta(description="The operator, as torch calls it: aten.mul.Tensor.")]
    values: Annotated[
        tuple[str, ...], Meta(description="A line for each input, the output, and the output in float64.")
    ]


def replayed(bundle: Path) -> Replayed:
    """Execute the operator of the bundle again, in a fresh Python.

    Raises:
        HypocenterError: what that process refused, with its words and its code; a bundle whose operator cannot be
            executed.
    """
    words = [sys.executable, "-m", "hypocenter.replay", str(bundle), "--json"]
    done = subprocess.run(
        words, check=False, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace"
    )
    lines = done.stdout.splitlines()
    if lines and lines[0].startswith("{"):
        raise _refused(json.loads(lines[0]), done.returncode)
    if done.returncode not in EXIT.values() or not lines or not lines[-1].startswith("the failure "):
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise BundleError(
            "the operator of the bundle cannot be executed", where=str(bundle), why=said[-1] if said else "",
            fix=f"see all that it says: hypocenter replay {bundle}",
        )  # fmt: skip
    op, *values, sentence = lines
    status = "failed-again" if done.returncode == EXIT["failed-again"] else "not-again"
    return Replayed(
        status=status, sentence=sentence, bundle=str(bundle), op=op, values=tuple(line.strip() for line in values)
    )


def _refused(told: dict[str, str], code: int) -> HypocenterError:
    error = HypocenterError(told["what"], where=told["where"], why=told["why"], fix=told["fix"])
    error.slug, error.exit_code = told["slug"], code
    return error
