"""`hypocenter headroom RUN`: what another format or loss scale would do to this run: overflow, zeros, headroom."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.compute as pc

from hypocenter import schedule
from hypocenter.cli.answer_format import print_answer
from hypocenter.cli.damage import require_rows, tell_damage
from hypocenter.cli.output_file import refuse_existing, write_file
from hypocenter.errors import ConfigError
from hypocenter.formats import FORMATS as NUMBERS
from hypocenter.formats import find_format
from hypocenter.record.reader import RecordedRun, open_run
from hypocenter.report import wording
from hypocenter.report.answer.rendering import FORMATS
from hypocenter.report.headroom import html, picture, scaled, terminal
from hypocenter.report.headroom.answer import Answer, answers
from hypocenter.report.headroom.gather import PHASES
from hypocenter.report.headroom.json import written
from hypocenter.report.screen import can_draw, screen_of, write
from hypocenter.report.selection import Selection, select
from hypocenter.summary.scaled_formats import SCALED, ScaledFormat

EXIT = {"fits": 0, "overflows": 1, "cannot-tell": 5}
BESIDE = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")  # on a page: others than the one asked about
MOST_SCALED = 50_000  # readings that are asked about formats with scales for a page: one by one, 50 us each
ROWS = 8  # sites of each phase on a screen before the rest is counted


@click.command("headroom")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--format", "format_names", multiple=True, metavar="NAME",
    help=f"fp16, bf16, fp32, fp8_e4m3fn, fp8_e5m2; with scales {', '.join(SCALED)} [default: float16]; and how it is "
    f"shown: {', '.join(FORMATS)}.",
)  # fmt: skip
@click.option("--scale", type=float, metavar="S", help="Loss scale of backward; each step's own if not given.")
@click.option("--phase", "phases", multiple=True, type=click.Choice(PHASES), help="Only this phase; may be repeated.")
@click.option("--site", default="", metavar="GLOB", help="Only sites that match, such as '*.attn.*'.")
@click.option("--step", type=int, help="Only this step (counted from 0).")
@click.option("--steps", metavar="SCHEDULE", help="Only these steps: 0,5-8,100-120 or every=N.")
@click.option("--rank", type=int, help="Only this rank.")
@click.option("--rows", type=click.IntRange(0), default=ROWS, show_default=True, help="Sites per phase; 0 for all.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; nothing is cut.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write a picture: FILE.svg or FILE.html.")
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
def command(
    run: Path, format_names: tuple[str, ...], scale: float | None, phases: tuple[str, ...], site: str, step: int | None,
    steps: str | None, rank: int | None, rows: int, as_json: bool, output: Path | None, force: bool,
) -> int:  # fmt: skip
    """Say what a number format, at a loss scale, would do to RUN; answered from the recording, without a rerun.

    Exit code: 0 nothing would overflow, 1 something would, 4 nothing to read, 5 cannot tell.
    """
    shown = "json" if as_json else next((name for name in reversed(format_names) if name in FORMATS), "terminal")
    format_name = next((name for name in reversed(format_names) if name not in FORMATS), "float16")
    if format_name in SCALED:
        _refuse_beside_scales(format_name, scale, output)
    form = NUMBERS["float16"] if format_name in SCALED else find_format(format_name)
    _check(scale, step, steps, output, force)
    recording = open_run(run)
    table = recording.table()
    require_rows(table.num_rows, recording)
    table = select(_of_steps(table, steps), Selection(site=site, step=step, rank=rank))
    if format_name in SCALED:
        return _scaled(recording, table, SCALED[format_name], phases or PHASES, shown, rows)
    is_page = shown == "html" or (output is not None and output.suffix == ".html")
    others = [NUMBERS[name] for name in BESIDE if NUMBERS[name] != form] if is_page else []
    told = answers(
        table, recording.step_records(), [form, *others], scale=scale, phases=phases or PHASES,
        level=str(recording.run.config.get("level") or ""),
    )  # fmt: skip
    found = told[0]
    has_scaled = is_page and table.num_rows <= MOST_SCALED
    beside = [scaled.answer(table, one, phases=phases or PHASES) for one in SCALED.values()] if has_scaled else []
    page = html.html(told, recording.run.name, beside) if is_page else ""
    if shown == "html":
        write(sys.stdout, page)
    elif shown != "terminal":
        print_answer("headroom", written(found, recording.run.name), shown)
    elif output is None or str(output) != "-":
        write(sys.stdout, terminal.render(found, screen_of(sys.stdout), rows=rows, has_unicode=can_draw(sys.stdout)))
    if output is not None:
        _draw(page or picture.svg(found, recording.run.name), output)
    elif shown == "terminal":
        _next(run, found, format_name)
    tell_damage(recording)
    return EXIT[found.status]


def _scaled(
    recording: RecordedRun, table: pa.Table, form: ScaledFormat, phases: Sequence[str], shown: str, rows: int
) -> int:
    """Print the answer for a format with scales of its own, and return the exit code."""
    found = scaled.answer(table, form, phases=phases, run=recording.run.name)
    if shown == "terminal":
        write(sys.stdout, scaled.render(found, screen_of(sys.stdout), rows=rows))
    else:
        print_answer("headroom", found, shown)
    tell_damage(recording)
    return EXIT[found.status]


def _refuse_beside_scales(format_name: str, scale: float | None, output: Path | None) -> None:
    for flag, value in (("--scale", scale), ("-o", output)):
        if value is not None:
            raise ConfigError(
                f"{flag} does not go with {format_name}",
                where="hypocenter headroom",
                why="its scales follow the data, whatever the loss scale is",
                fix="leave it out; pages: --format html",
            )


def _check(scale: float | None, step: int | None, steps: str | None, output: Path | None, force: bool) -> None:
    """Refuse options that make no sense, before anything is read."""
    if scale is not None and not 0.0 < scale < math.inf:
        raise ConfigError(
            f"a loss scale of {scale}", where="--scale", why="a scale is a positive finite number", fix="such as 65536"
        )
    if step is not None and steps is not None:
        raise ConfigError("--step and --steps exclude each other", where="hypocenter headroom", fix="give one of them")
    if output is not None and output.suffix not in (".svg", ".html"):
        raise ConfigError(
            f"no picture is called {output.name!r}", where="-o", why="its ending says what to draw",
            fix="end it in .svg or .html",
        )  # fmt: skip
    refuse_existing(output, "picture", flag="-o", force=force)


def _of_steps(table: pa.Table, steps: str | None) -> pa.Table:
    if steps is None:
        return table
    is_due = schedule.parse(steps)
    wanted = [step for step in table["step"].unique().to_pylist() if is_due(step)]
    if not wanted and table.num_rows:
        raise ConfigError(
            f"nothing was recorded at steps {steps}", where="--steps", fix="see them with `hypocenter show`"
        )
    return table.filter(pc.is_in(table["step"], pa.array(wanted, pa.int64())))


def _draw(text: str, output: Path) -> None:
    write_file(output, text, "picture", flag="-o")
    write(sys.stderr, f"wrote {output} ({wording.byte_size(len(text.encode()))})\n")


def _next(run: Path, found: Answer, format_name: str) -> None:
    if found.first is not None and found.first.site:
        words = ("show", str(run), "--site", wording.site_glob(found.first.site), "--values")
    else:
        words = ("headroom", str(run), "--format", format_name, "-o", "headroom.html")
    write(sys.stderr, f"next: {wording.command(*words)}\n")
