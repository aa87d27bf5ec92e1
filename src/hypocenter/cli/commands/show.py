"""`hypocenter show RUN`: the recording itself: its sites, frames before a failure, values, the loss scale, SQL."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from hypocenter.cli.answer_format import format_option, print_answer
from hypocenter.cli.damage import require_rows, tell_damage
from hypocenter.cli.on_option import on_option
from hypocenter.errors import ConfigError
from hypocenter.record.reader import RecordedRun, open_run
from hypocenter.report import diary, frames, rank_table, sites, values, wording
from hypocenter.report.columns import cut_rows
from hypocenter.report.frames import microbatch_to_show
from hypocenter.report.rank_states import rank_states
from hypocenter.report.screen import screen_of, write
from hypocenter.report.selected import first_values, logical, selected
from hypocenter.report.selection import Selection
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
@on_option
@format_option()
def command(
    run: Path, site: str, step: int | None, rank: int | None, n_frames: int | None, as_values: bool, as_diary: bool,
    as_ranks: bool, query: str | None, most: int, on: str, format_name: str,
) -> None:  # fmt: skip
    """Show what was recorded in RUN: by default its sites, in execution order."""
    if sum((n_frames is not None, as_values, as_diary, as_ranks, query is not None)) > 1:
        raise ConfigError(
            "--frames, --values, --diary, --ranks and --sql exclude each other",
            where="hypocenter show",
            fix="give one of them",
        )
    recording = open_run(run, on)
    asked = _Asked(
        run=run, wanted=Selection(site=site, step=step, rank=rank, is_whole=format_name == "json"), n_frames=n_frames,
        query=query, most=sys.maxsize if format_name != "terminal" or most == 0 else most, format_name=format_name,
    )  # fmt: skip
    if query is not None:
        _sql(recording, asked)
    elif as_ranks:
        _ranks(recording, asked)
    elif n_frames is not None:
        _frames(recording, asked)
    elif as_diary:
        _diary(recording, asked)
    elif as_values:
        _values(recording, asked)
    else:
        _sites(recording, asked)
    tell_damage(recording)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The options that were typed."""

    run: Path
    wanted: Selection
    n_frames: int | None
    query: str | None
    most: int
    format_name: str


def _sql(recording: RecordedRun, asked: _Asked) -> None:
    from hypocenter.record.query import sql  # loads DuckDB, which no other view needs

    assert asked.query is not None
    _emit("sql", values.as_dicts(sql(recording, asked.query)), values.query_in_words, asked)
    _next(asked.run, "--sql", "describe readings")


def _ranks(recording: RecordedRun, asked: _Asked) -> None:
    from hypocenter.diagnose.diagnosis import diagnose  # loads every rule, which no other view needs

    found = diagnose(recording)
    lines = rank_table.rank_lines(rank_states(recording, found), found)
    _emit("ranks", [line for line in lines if asked.wanted.rank in (None, line["rank"])], rank_table.in_words, asked)
    if asked.format_name == "terminal":
        write(sys.stdout, "".join(f"{line}\n" for line in whereabouts_table(recording)))
    _next(asked.run, "--rank", "0")


def _diary(recording: RecordedRun, asked: _Asked) -> None:
    wanted = asked.wanted
    table = selected(recording, replace(wanted, site=""), phases=("scaler",))
    require_rows(table.num_rows, recording)
    found = diary.stretches(diary.only_of(table, wanted.site) if wanted.site else table, recording.step_records())
    if not found:
        raise _no_scaler(wanted)
    _emit("diary", found, diary.in_words, asked)
    _next(asked.run, "--site", "loss_scale*", "--values")


def _values(recording: RecordedRun, asked: _Asked) -> None:
    chosen = first_values(recording, asked.wanted, asked.most)
    require_rows(chosen.n_rows, recording)
    _emit(
        "values",
        chosen.table,
        partial(values.in_words, room=screen_of(sys.stdout).room),
        asked,
        chosen.n_rows,
        chosen.n_left_out,
    )
    _next_after_values(asked.run, asked.wanted, chosen.table)


def _sites(recording: RecordedRun, asked: _Asked) -> None:
    chosen = logical(recording, asked.wanted)
    require_rows(chosen.n_rows, recording)
    lines = sites.site_lines(chosen.table)
    _emit("sites", lines, partial(sites.in_words, room=screen_of(sys.stdout).room), asked, n_left_out=chosen.n_left_out)
    _next_after_sites(asked.run, lines)


def _no_scaler(wanted: Selection) -> ConfigError:
    return ConfigError(
        "no loss scaler stepped here",
        where=f"--step {wanted.step}" if wanted.step is not None else "the recording",
        why="the diary is of steps that a GradScaler or a framework's loss scaler made",
        fix="leave --step and --rank out" if wanted != Selection() else "leave --diary out to see what was recorded",
    )


def _emit(
    what: str, found: Any, in_words: Callable[[Any], Iterator[str]], asked: _Asked, n: int | None = None,
    n_left_out: int = 0,
) -> None:  # fmt: skip
    """Print a sequence or an Arrow table of rows, at most as many as were asked for and `n`; as JSON all."""
    if asked.format_name != "terminal":
        _print_answer(what, values.plain(found), asked)
        return
    n, most = len(found) if n is None else n, asked.most
    shown = found.slice(0, most) if isinstance(found, pa.Table) else found[:most]
    write(sys.stdout, "".join(f"{line}\n" for line in in_words(shown)))
    lines = [*cut_rows(min(most, n), n, "row", "see them with --rows 0 or --json")]
    if n_left_out:
        rows_of = "of digests and of Hypocenter's own measurements"
        lines.append(f"{wording.count(n_left_out, 'row')} {rows_of} not shown, see them with --site '*'")
    write(sys.stdout, "".join(f"{line}\n" for line in lines))


def _frames(recording: RecordedRun, asked: _Asked) -> None:
    wanted = asked.wanted
    table = selected(recording, wanted, phases=("forward", "param"))
    require_rows(table.num_rows, recording)
    spot = microbatch_to_show(table)
    if spot is None:
        raise ConfigError(
            "no module frames were recorded here",
            where=f"--step {wanted.step}" if wanted.step is not None else "the recording",
            why="the level sentinel records modules only in the replay of a step that failed",
            fix="record with --level modules, or name another --step",
        )
    assert asked.n_frames is not None
    tail = frames.tail_of(frames.frames_of(spot.readings, spot.weights), asked.n_frames)
    if asked.format_name != "terminal":
        _print_answer("frames", {**spot.named(), **asdict(tail)}, asked)
    else:
        n_all = tail.n_before + len(tail.frames) + tail.n_after
        of = f"last {len(tail.frames)} of {wording.count(n_all, 'module frame')}"
        until = "up to the first value that is not finite" if tail.has_bad else "of the step; all values are finite"
        write(sys.stdout, f"{spot.in_words()}: {of}, {until}\n")
        write(sys.stdout, "".join(f"{line}\n" for line in frames.in_words(tail)))
    _next(asked.run, "--values", *(("--site", wanted.site) if wanted.site else ()))


def _print_answer(what: str, data: Any, asked: _Asked) -> None:
    envelope = {"schema": f"hypocenter.show-{what}/1", "status": "found", what: data}
    print_answer("show", envelope, asked.format_name)


def _next_after_values(run: Path, wanted: Selection, table: pa.Table) -> None:
    """Say the next command: the frames, if there are any; else what it all means."""
    at = ("--step", str(wanted.step)) if wanted.step is not None else ()
    if frames.has_frames(table):
        _next(run, "--frames", "21", *at)
    else:
        write(sys.stderr, f"next: {wording.command('check', str(run))}\n")


def _next_after_sites(run: Path, lines: Sequence[sites.SiteLine]) -> None:
    """Say the next command: what a replay saw before the first bad value, else the values of one site."""
    telling = sites.most_telling(lines)
    if any(line.replay and line.phase == "forward" and sites.is_bad(line) for line in lines):
        _next(run, "--frames", "21")
    elif telling is not None:
        _next(run, "--site", wording.site_glob(telling), "--values")
    else:
        write(sys.stderr, f"next: {wording.command('check', str(run))}\n")


def _next(run: Path, *words: str) -> None:
    write(sys.stderr, f"next: {wording.command('show', str(run), *words)}\n")
