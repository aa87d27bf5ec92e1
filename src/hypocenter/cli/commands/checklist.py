"""`hypocenter checklist BASELINE CANDIDATE`: two configurations compared item by item, for whatever framework."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from hypocenter.checklist.checklist import Checklist, Row
from hypocenter.checklist.compare import compare
from hypocenter.checklist.data.files.data_file import DataFile, open_data_file
from hypocenter.checklist.data.files.rows import of_files
from hypocenter.checklist.data.rows import of_batches
from hypocenter.checklist.data.tokenizer import open_tokenizer
from hypocenter.checklist.items.item import Items, load
from hypocenter.checklist.reading import read
from hypocenter.cli.answer_format import format_option, print_answer
from hypocenter.errors import ConfigError
from hypocenter.record.layout import is_recording
from hypocenter.record.reader import RecordedRun, open_run
from hypocenter.report import wording
from hypocenter.report.checklist import json, markdown, terminal
from hypocenter.report.screen import can_draw, screen_of, write

EXIT = {"same": 0, "different": 1, "cannot-tell": 5}
_DATA_FILES = "one data file a side: .npy, .idx beside its .bin, or .mindrecord"


@click.command("checklist")
@click.argument("baseline", metavar="BASELINE")
@click.argument("candidate", metavar="CANDIDATE")
@click.option("--baseline", "more_baseline", multiple=True, metavar="FILE", help="One more file of the baseline.")
@click.option("--candidate", "more_candidate", multiple=True, metavar="FILE", help="One more file of the candidate.")
@click.option(
    "--items", "own_items", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
    help="Items of your own: a TOML file or a folder of them; may be repeated.",
)  # fmt: skip
@click.option(
    "--tokenizer", type=click.Path(path_type=Path), metavar="DIR",
    help="Folder of the tokenizer: its special ids are checked, and samples of the batches decoded.",
)  # fmt: skip
@click.option("--all", "all_rows", is_flag=True, help="Show all rows: what is the same and what nobody says too.")
@format_option()
def command(
    baseline: str, candidate: str, more_baseline: tuple[str, ...], more_candidate: tuple[str, ...],
    own_items: tuple[Path, ...], tokenizer: Path | None, all_rows: bool, format_name: str,
) -> int:  # fmt: skip
    """Compare what two trainings are configured to do, in the field's terms, whichever framework each is for.

    Each side is a launch script, a configuration file, a log that holds the arguments, a checkpoint or a run directory.
    Several files of one side are joined by a comma, of which the last has the last word:
    config.json,training_args.json,ds.json. Run directories that were recorded with --save-batches also have their real
    batches compared and checked: order, range of ids, shift of labels, ends of sequences, special ids.

    Two data files (.npy, Megatron's .idx and .bin, MindRecord) are compared sample by sample.

    Exit code: 0 same, 1 different, 2 a file of items is wrong, 4 nothing to read, 5 cannot tell.
    """
    items = load(own_items)
    paths = [
        [*paths_of(word), *map(Path, more)] for word, more in ((baseline, more_baseline), (candidate, more_candidate))
    ]
    files = _data_files(paths)
    if files is not None:
        found = of_files(*files, (paths[0][0], paths[1][0]), items)
    else:
        found = _of_configurations(paths, items, tokenizer)
    if format_name == "markdown":
        write(sys.stdout, markdown.render(found, all_rows=all_rows, headings=items.groups))
    elif format_name != "terminal":
        print_answer("checklist", json.written(found), format_name)
    else:
        write(sys.stdout, _on_screen(found, items, all_rows=all_rows))
        _next(found)
    return EXIT[found.status]


def _of_configurations(paths: Sequence[Sequence[Path]], items: Items, tokenizer: Path | None) -> Checklist:
    one, other = read(paths[0]), read(paths[1])
    runs = _recording(paths[0]), _recording(paths[1])
    batches = of_batches(runs, (one, other), items, open_tokenizer(tokenizer) if tokenizer is not None else None)
    return compare(one, other, items, extra_rows=batches.rows, samples=batches.samples, more_notes=batches.notes)


def _data_files(paths: Sequence[Sequence[Path]]) -> tuple[DataFile, DataFile] | None:
    """Open both sides as files of samples; None when neither is one."""
    found = [[open_data_file(path) for path in side] for side in paths]
    data = [[file for file in side if file is not None] for side in found]
    if not any(data):
        return None
    if [len(side) for side in data] != [1, 1] or [len(side) for side in paths] != [1, 1]:
        others = [
            path
            for side, files in zip(paths, found, strict=True)
            for path, file in zip(side, files, strict=True)
            if file is None
        ]
        why = "a data file is compared with one data file, and with nothing else"
        if others and not others[0].exists():
            why = "there is no such file"
        where = str(others[0]) if others else "hypocenter checklist"
        raise ConfigError("this is no data file to compare with one", where=where, why=why, fix=f"give {_DATA_FILES}")
    return data[0][0], data[1][0]


def paths_of(word: str) -> list[Path]:
    """Return the files of a side: one path, or several joined by commas or pluses. An existing path is never cut."""
    if not word.strip():
        raise ConfigError("a side of the checklist has no file", where="hypocenter checklist", fix="name a file of it")
    if Path(word).exists():
        return [Path(word)]
    for joint in (",", "+"):
        if joint in word:
            return [path for part in word.split(joint) if part.strip() for path in paths_of(part.strip())]
    return [Path(word)]


def _recording(paths: Sequence[Path]) -> RecordedRun | None:
    """Return the recording among the files of a side; None when there is none."""
    return next((open_run(path) for path in paths if is_recording(path)), None)


def _on_screen(found: Checklist, items: Items, *, all_rows: bool) -> str:
    view = terminal.View(
        screen=screen_of(sys.stdout), all_rows=all_rows, has_unicode=can_draw(sys.stdout), headings=items.groups
    )
    return terminal.render(found, view)


def _next(found: Checklist) -> None:
    first = next((row for row in found.rows if row.verdict == "different"), None)
    write(sys.stderr, f"next: {_advice(found, first)}\n")


def _advice(found: Checklist, first: Row | None) -> str:
    if first is not None and found.status == "different":
        return wording.command("explain", first.item)
    if found.status == "cannot-tell":
        return "give more files of the sides: model, trainer and parallel settings, joined by commas"
    return "hypocenter align new > plan.toml  # the next stages"
