"""`hypocenter show RUN`: the recording itself: its sites, frames before a failure, values, the loss scale, SQL."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from hypocenter import json_answer
from hypocenter.errors import ConfigError
from hypocenter.record.reader import open_run
from hypocenter.report import diary, frames, rank_table, rows, sites, values, wording
from hypocenter.report.columns import cut_rows
from hypocenter.report.rank_states import rank_states
from hypocenter.report.screen import write
from hypocenter.report.selected import first_values, logical, selected
from hypocenter.report.selection import Selection
from hypocenter.report.spot import spot_of
from hypocenter.report.whereabouts_table import whereabouts_table

MOST_ROWS = 200  # lines on a screen before the rest is counted


@click.command("show")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--site", default="", metavar="GLOB", help="Only sites that match, such as '*.attn.*'.")
@click.option("--step", type=int, help="Only this step (counted from 0).")
@click.option("--rank", type=int, help="Only this rank.")
@click.option(
    "--frames", "n_frames", type=click.IntRange(1), metavar="N", help="The last N module frames before the failure."
)
@click.option("--values", "as_values", is_flag=True, help="Every reading, by step.")
@click.option("--diary", "as_diary", is_flag=True, help="The loss scale: what each step found, and which gradients.")
@click.option("--ranks", "as_ranks", is_flag=True, help="Every rank: its place, host, first bad and last step.")
@click.option("--sql", "query", metavar="QUERY", help="Ask the tables `readings` and `steps` (DuckDB).")
@click.option(
    "--rows", "most", type=click.IntRange(0), default=MOST_ROWS, show_default=True, help="Most lines; 0 for all."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; nothing is cut.")
def command(
    run: Path, site: str, step: int | None, rank: int | None, n_frames: int | None, as_values: bool, as_diary: bool,
    as_ranks: bool, query: str | None, most: int, as_json: bool,
) -> None:  # fmt: skip
    """Show what was recorded in RUN: by default its sites, in execution order."""
    if sum((n_frames is not None, as_values, as_diary, as_ranks, query is not None)) > 1:
        raise ConfigError(
            "--frames, --values, --diary, --ranks and --sql exclude each other",
            where="hypocenter show",
            fix="give one of them",
        )
    recording = open_run(run)
    most = sys.maxsize if as_json or most == 0 else most
    if query is not None:
        from hypocenter.record.query import sql  # loads DuckDB, which no other view needs

        _emit("sql", rows.as_dicts(sql(recording, query)), rows.in_words, most, as_json)
        _next(run, "--sql", "describe readings")
        return
    if as_ranks:
        from hypocenter.diagnose.diagnosis import diagnose  # loads every rule, which no other view needs

        found = diagnose(recording)
        lines = rank_table.rank_lines(rank_states(recording, found), found)
        _emit("ranks", [line for line in lines if rank in (None, line["rank"])], rank_table.in_words, most, as_json)
        if not as_json:
            write(sys.stdout, "".join(f"{line}\n" for line in whereabouts_table(recording)))
        _next(run, "--rank", "0")
        return
    wanted = Selection(site=site, step=step, rank=rank)
    if n_frames is not None:
        _frames(selected(recording, wanted, phases=("forward", "param")), wanted, n_frames, as_json)
        _next(run, "--values", "--site", site or "*")
    elif as_diary:
        table = selected(recording, Selection(step=step, rank=rank), phases=("scaler",))
        found = diary.stretches(diary.only_of(table, site) if site else table, recording.step_records())
        if not found:
            raise _no_scaler(wanted)
        _emit("diary", found, diary.in_words, most, as_json)
        _next(run, "--site", "loss_scale*", "--values")
    elif as_values:
        table, n_rows = first_values(recording, wanted, most)
        _emit("values", table, values.in_words, most, as_json, n_rows)
        _next(run, "--frames", "21")
    else:
        lines = sites.site_lines(logical(recording, wanted))
        _emit("sites", lines, sites.in_words, most, as_json)
        _next(run, "--site", wording.site_glob(sites.most_telling(lines)), "--values")


def _no_scaler(wanted: Selection) -> ConfigError:
    return ConfigError(
        "no loss scaler stepped here",
        where=f"--step {wanted.step}" if wanted.step is not None else "the recording",
        why="the diary is of steps that a GradScaler or a framework's loss scaler made",
        fix="leave --step and --rank out" if wanted != Selection() else "see all sites: hypocenter show RUN",
    )


def _emit(
    what: str, found: Any, in_words: Callable[[Any], Iterator[str]], most: int, as_json: bool, n: int | None = None
) -> None:
    """Print a sequence or an Arrow table of rows, at most `most` of them and of `n`; as JSON all."""
    if as_json:
        _print_json(what, rows.plain(found))
        return
    n = len(found) if n is None else n
    shown = found.slice(0, most) if isinstance(found, pa.Table) else found[:most]
    write(sys.stdout, "".join(f"{line}\n" for line in in_words(shown)))
    write(
        sys.stdout,
        "".join(f"{line}\n" for line in cut_rows(min(most, n), n, "row", "see them with --rows 0 or --json")),
    )


def _frames(table: pa.Table, wanted: Selection, n_frames: int, as_json: bool) -> None:
    spot = spot_of(table)
    if spot is None:
        raise ConfigError(
            "no module frames were recorded here",
            where=f"--step {wanted.step}" if wanted.step is not None else "the recording",
            why="the level sentinel records modules only in the replay of a step that failed",
            fix="record with --level modules, or name another --step",
        )
    tail = frames.tail_of(frames.frames_of(spot.readings, spot.weights), n_frames)
    if as_json:
        _print_json("frames", {**spot.named(), **asdict(tail)})
        return
    of = f"last {len(tail.frames)} of {wording.count(tail.n_before + len(tail.frames) + tail.n_after, 'module frame')}"
    until = "up to the first value that is not finite" if tail.has_bad else "of the step; all values are finite"
    write(sys.stdout, f"{spot.in_words()}: {of}, {until}\n")
    write(sys.stdout, "".join(f"{line}\n" for line in frames.in_words(tail)))


def _print_json(what: str, data: Any) -> None:
    envelope = {"schema": f"hypocenter.show-{what}/1", "status": "found", what: data}
    write(sys.stdout, json_answer.to_json(envelope))


def _next(run: Path, *words: str) -> None:
    write(sys.stderr, f"next: {wording.command('show', str(run), *words)}\n")
