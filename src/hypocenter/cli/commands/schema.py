"""`hypocenter schema NAME`: the JSON Schema of an answer, made from its type."""

from __future__ import annotations

import json
import sys
from pkgutil import resolve_name

import click

from hypocenter.errors import UnknownNameError
from hypocenter.json_answer import published
from hypocenter.report.screen import write
from hypocenter.report.wording import nearest

ANSWERS = {
    "alignment": "hypocenter.align.alignment:Alignment",
    "checklist": "hypocenter.report.checklist.json:Compared",
    "comparison": "hypocenter.report.comparison.json:Diff",
    "cure": "hypocenter.diagnose.cure:Answer",
    "curves": "hypocenter.compare.curves.comparison:CurveComparison",
    "determinism": "hypocenter.compare.repeats.answer:Determinism",
    "diagnosis": "hypocenter.nouns:Diagnosis",
    "doctor": "hypocenter.doctor.answer:Answer",
    "error": "hypocenter.cli.entry:ErrorAnswer",
    "fleet": "hypocenter.diagnose.fleet:Fleet",
    "health": "hypocenter.diagnose.health:Answer",
    "headroom": "hypocenter.report.headroom.json:Headroom",
    "isolation": "hypocenter.compare.isolation.isolated:Isolation",
    "relations": "hypocenter.diagnose.relation_list:Answer",
    "replay": "hypocenter.cli.commands.replay:Replayed",
    "runs": "hypocenter.diagnose.run_list:Runs",
    "scaled-headroom": "hypocenter.report.headroom.scaled:ScaledHeadroom",
    "spikes": "hypocenter.diagnose.spike_list:Answer",
    "twin": "hypocenter.twins.answer:Twin",
    "values": "hypocenter.compare.values.measured:Values",
    "weights": "hypocenter.compare.weights.diff:WeightsComparison",
}
"""Answers by the name in their `schema`: `hypocenter.curves/1` is that of `curves`."""


@click.command("schema")
@click.argument("name", metavar="NAME")
def command(name: str) -> None:
    """Print the JSON Schema (draft 2020-12) of what a command prints with --json: curves, or hypocenter.curves/1."""
    write(sys.stdout, json.dumps(schema_of(name), indent=2, ensure_ascii=False) + "\n")


def schema_of(name: str) -> dict[str, object]:
    """Return the schema of the answer of this name.

    Raises:
        UnknownNameError: no answer is called so.
    """
    known = name.removeprefix("hypocenter.").removesuffix("/1")
    if known not in ANSWERS:
        raise UnknownNameError(
            f"no answer is called {name!r}", where="hypocenter schema", why=f"there are {', '.join(ANSWERS)}",
            fix=nearest(known, list(ANSWERS)),
        )  # fmt: skip
    return published(resolve_name(ANSWERS[known]))
