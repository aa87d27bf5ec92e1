"""`hypocenter isolate BASELINE CANDIDATE`: which module errs by itself, given what the baseline's took in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from hypocenter.cli.answer_format import format_option, print_answer
from hypocenter.cli.damage import tell_damage
from hypocenter.compare.isolation.isolate import isolate
from hypocenter.compare.isolation.isolated import Isolated, Isolation
from hypocenter.compare.judged_steps import Options
from hypocenter.compare.pairing.manual_map import read_map
from hypocenter.compare.sentences import place, power
from hypocenter.record.reader import open_run
from hypocenter.report import wording
from hypocenter.report.columns import aligned, cut_rows
from hypocenter.report.screen import write

EXIT = {"same": 0, "diverged": 1, "cannot-tell": 5}
ROWS = 20  # modules on a screen before the rest is counted
_HEAD = ("verdict", "module", "class", "port", "own error", "floor", "times", "how")


@click.command("isolate")
@click.argument("baseline", type=click.Path(path_type=Path))
@click.argument("candidate", type=click.Path(path_type=Path))
@click.option(
    "--step", type=click.IntRange(0), help="Step of the baseline; the first with values in both if not given."
)
@click.option("--microbatch", type=click.IntRange(0), default=0, show_default=True, help="Micro-batch of the step.")
@click.option("--site", default="", metavar="GLOB", help="Only modules of the baseline that match, such as '*.attn'.")
@click.option(
    "--map", "map_file", type=click.Path(path_type=Path), metavar="FILE", help="Pairs of sites that win (TOML)."
)
@click.option("--plugin", "plugins", multiple=True, metavar="FILE", help="A file with more matchers.")
@click.option("--rows", type=click.IntRange(0), default=ROWS, show_default=True, help="Modules shown; 0 for all.")
@format_option()
def command(
    baseline: Path, candidate: Path, step: int | None, microbatch: int, site: str, map_file: Path | None,
    plugins: tuple[str, ...], rows: int, format_name: str,
) -> int:  # fmt: skip
    """Name the module of CANDIDATE that errs by itself, so that nothing upstream hides or blames it.

    Both are recordings of level tensors; modules of known classes are executed again in float64 from the values
    recorded. On live models: hypocenter.isolate(model, recording). Exit code: 0 none errs, 1 one does, 4 nothing to
    read, 5 cannot tell.
    """
    options = Options(site=site, plugins=plugins, map=read_map(map_file) if map_file is not None else None)
    runs = open_run(baseline), open_run(candidate)
    found = isolate(*runs, step=step, microbatch=microbatch, options=options)
    if format_name != "terminal":
        print_answer("isolate", found, format_name)
    else:
        write(sys.stdout, "".join(f"{line}\n" for line in _in_words(found, rows)))
        _next(baseline, candidate, found.modules[0].site if found.modules else "", found.status)
    tell_damage(*runs)
    return EXIT[found.status]


def _next(baseline: Path, candidate: Path, site: str, status: str) -> None:
    words = ("diff", str(baseline), str(candidate))
    if status == "diverged":
        words = (*words, "--site", wording.site_glob(site), "--values")
    write(sys.stderr, f"next: {wording.command(*words)}\n")


def _in_words(found: Isolation, most: int = ROWS) -> Iterator[str]:
    """Yield the sentence, the modules worst first (`most` 0: all), and what could not be read."""
    yield wording.sentence(found.sentence)
    rows = found.modules[: most or None]
    if rows:
        yield ""
        yield from aligned([_HEAD, *map(_cells, rows)], right=frozenset({4, 5, 6}))
        yield from cut_rows(len(rows), len(found.modules), "module", "see them with --rows 0 or --json")
    for note in found.notes:
        yield f"note: {wording.sentence(note)}"


def _cells(one: Isolated) -> tuple[str, ...]:
    name = wording.clean(place(one.site)) + (f" call {one.call}" if one.call else "")
    renamed = f" ({wording.clean(one.candidate_site)})" if one.candidate_site != one.site else ""
    verdict = "own, innermost" if one.innermost else one.verdict
    how = ": ".join(word for word in (one.how, one.why) if word)
    return (
        verdict, f"{name}{renamed}", one.kind, one.port, "?" if one.error is None else power(one.error),
        "?" if one.floor is None else power(one.floor), "" if one.error is None else f"{one.times:,.1f}", how,
    )  # fmt: skip
