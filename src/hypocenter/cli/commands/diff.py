"""`hypocenter diff BASELINE CANDIDATE`: the first place where two runs that should match do not, beyond the noise."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from hypocenter import schedule
from hypocenter.cli.answer_format import format_option, print_answer
from hypocenter.cli.commands import curves
from hypocenter.cli.damage import tell_damage
from hypocenter.cli.on_option import on_option
from hypocenter.cli.output_file import refuse_existing, write_file
from hypocenter.compare.comparison import Comparison
from hypocenter.compare.curves.catalogue import is_log
from hypocenter.compare.curves.of_runs import curves_of_runs
from hypocenter.compare.engine import compare_runs
from hypocenter.compare.judged_steps import Options, first_step_of
from hypocenter.compare.pairing.manual_map import draft_map, read_map
from hypocenter.compare.values.measured import Measured, measured, values_of
from hypocenter.compare.verdict import BUDGET
from hypocenter.errors import ConfigError
from hypocenter.record.reader import RecordedRun, open_run
from hypocenter.report import value_table, wording
from hypocenter.report.answer.rendering import FORMATS
from hypocenter.report.comparison import catalogue, html, terminal
from hypocenter.report.comparison.page.payload import Material
from hypocenter.report.screen import screen_of, write

EXIT = {"same": 0, "diverged": 1, "cannot-tell": 5}
_BUDGET = re.compile(r"(?:floor)?\s*[×x*]?\s*([0-9.eE+-]+)")


@click.command("diff")
@click.argument("baseline", type=click.Path(path_type=Path))
@click.argument("candidate", type=click.Path(path_type=Path))
@click.option(
    "--noise", "noise", multiple=True, type=click.Path(path_type=Path), metavar="RUN",
    help="A repeat of the baseline, to measure the noise floor; may be repeated.",
)  # fmt: skip
@click.option(
    "--budget", default=f"floor×{BUDGET:g}", show_default=True, metavar="NUMBER",
    help="An error counts from this many times the noise floor on: 4, or floor×4.",
)  # fmt: skip
@click.option(
    "--map", "map_file", type=click.Path(path_type=Path), metavar="FILE", help="Pairs of sites that win (TOML)."
)
@click.option("--write-map", type=click.Path(path_type=Path), metavar="FILE", help="Write the pairs found to FILE.")
@click.option("--steps", metavar="SCHEDULE", help="Only these steps of the baseline: 0,5-8,100-120 or every=N.")
@click.option("--site", default="", metavar="GLOB", help="Only sites of the baseline that match, such as '*.attn.*'.")
@click.option("--plugin", "plugins", multiple=True, metavar="FILE", help="A file with more fits or matchers.")
@click.option("--rows", type=click.IntRange(0), default=terminal.ROWS, show_default=True, help="Rows shown; 0 for all.")
@click.option("--values", "as_values", is_flag=True, help="Measure the values themselves (level tensors), row by row.")
@on_option
@format_option(others="junit, sarif")
@click.option("--report", type=click.Path(path_type=Path), metavar="OUT.html", help="Write a page that opens offline.")
@click.option("--force", is_flag=True, help="Overwrite OUT.html if it exists.")
def command(
    baseline: Path, candidate: Path, noise: tuple[Path, ...], budget: str, map_file: Path | None,
    write_map: Path | None, steps: str | None, site: str, plugins: tuple[str, ...], rows: int, as_values: bool, on: str,
    format_name: str, report: Path | None, force: bool,
) -> int:  # fmt: skip
    """Name the first place, in execution order, where CANDIDATE leaves BASELINE by more than the noise floor.

    Of logs (trainer_state.json, Megatron-LM text, TensorBoard events, ...) the curves are compared, as `hypocenter
    curves` does. Exit code: 0 the same, 1 diverged, 4 nothing to read, 5 cannot tell.
    """
    if is_log(baseline) or is_log(candidate):
        return _curves(baseline, candidate, noise, format_name, on)
    refuse_existing(write_map, "map", flag="--write-map")
    refuse_existing(report, "report", flag="--report", force=force)
    render = catalogue.by_name(format_name)
    options = Options(
        noise=[open_run(path, on) for path in noise], budget=budget_of(budget), site=site, plugins=plugins,
        map=read_map(map_file) if map_file is not None else None,
        is_wanted=schedule.parse(steps) if steps is not None else None,
    )  # fmt: skip
    runs = open_run(baseline, on), open_run(candidate, on)
    found = compare_runs(*runs, options=options)
    if write_map is not None:
        _write_map(write_map, found)
    if report is not None:
        again = [
            *(("--noise", path) for path in noise),
            ("--budget", f"{options.budget:g}" if options.budget != BUDGET else None),
            ("--map", map_file),
            ("--steps", steps),
        ]
        again += [("--site", site or None), *(("--plugin", path) for path in plugins), ("--report", report)]
        words = [str(word) for option in again if option[1] is not None for word in option]
        write_page(report, found, runs, options, ["diff", str(baseline), str(candidate), *words])
    if as_values:
        _values(found, list(measured(found, *runs, options.is_wanted)), format_name, rows)
    elif format_name == "terminal":
        write(sys.stdout, terminal.render(found, screen_of(sys.stdout), rows))
    else:
        write(sys.stdout, render(found))
    if format_name == "terminal":
        _next(baseline, candidate, found, has_noise=bool(noise))
    tell_damage(*runs, *options.noise)
    return EXIT[found.status]


def _curves(baseline: Path, candidate: Path, noise: tuple[Path, ...], name: str, on: str) -> int:
    if name not in FORMATS:
        raise ConfigError(
            f"curves are not shown as {name}", where=f"--format {name}",
            why=f"one of the two is a log, not a run: there are {', '.join(FORMATS)}",
            fix=f"hypocenter curves {baseline} {candidate} --plot OUT.svg",
        )  # fmt: skip
    return curves.answer(curves.compare_logs(baseline, candidate, noise, on=on), name)


def budget_of(text: str) -> float:
    """Return how many times the noise floor an error may be: 4 for `4`, `floor×4`, `floor x 4` or `floor*4`.

    Raises:
        ConfigError: it is none of these, or not above 0.
    """
    match = _BUDGET.fullmatch(text.strip())
    try:
        value = float(match[1]) if match else math.nan
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise ConfigError(
            f"a budget of {text!r}", where="--budget", why="it is how often the noise floor an error may be",
            fix="such as 4, or floor×4",
        )  # fmt: skip
    return value


def _values(found: Comparison, lines: Sequence[Measured], name: str, rows: int) -> None:
    if name not in FORMATS:
        raise ConfigError(
            "--values has no such format", where=f"--format {name}", fix=f"give one of {', '.join(FORMATS)}"
        )
    if name != "terminal":
        print_answer("diff", values_of(found, lines), name)
        return
    words = [wording.sentence(found.sentence), "", *value_table.in_words(lines, rows or len(lines))]
    write(sys.stdout, "".join(f"{line}\n" for line in words))


def _write_map(path: Path, found: Comparison) -> None:
    write_file(path, draft_map(found.matching), "map", flag="--write-map")
    write(sys.stderr, f"wrote {path}\n")


def _next(baseline: Path, candidate: Path, found: Comparison, *, has_noise: bool) -> None:
    if found.first is not None and found.status == "diverged":
        site = found.first.row.pair.candidate[0].site if found.first.row is not None else found.first.candidate_site
        words = ("show", str(candidate), "--site", wording.site_glob(site), "--step", str(found.first.step), "--values")
    elif not has_noise and found.status == "cannot-tell" and found.n_rows:
        words = ("diff", str(baseline), str(candidate), "--noise", "RUN")
    else:
        words = ("diff", str(baseline), str(candidate), "--json")
    write(sys.stderr, f"next: {wording.command(*words)}\n")
    if found.status == "diverged" and found.cause in (None, "unknown"):  # settings are recorded, and may tell it
        write(sys.stderr, f"next: {wording.command('checklist', str(baseline), str(candidate))}\n")


def write_page(
    target: Path, found: Comparison, runs: tuple[RecordedRun, RecordedRun], options: Options, words: list[str]
) -> None:
    """Write the page of a comparison, and say how large it is.

    Args:
        runs: baseline and candidate.
        options: those that `found` was made with.
        words: of the command line that makes the page again, without the program's name.

    Raises:
        ConfigError: the file cannot be written.
    """
    noise = [run.directory for run in options.noise]
    material = Material(
        scene=first_step_of(found, *runs, options), facts=(runs[0].facts(), runs[1].facts()),
        curves=curves_of_runs(runs[0].directory, runs[1].directory, noise), command=wording.command(*words),
    )  # fmt: skip
    text = html.render(found, material)
    write_file(target, text, "report", flag="--report")
    write(sys.stderr, f"wrote {target} ({wording.byte_size(len(text.encode()))}); open it in a browser\n")
