"""`hypocenter spikes RUN`: the steps whose loss or gradient jumped: where it began, in which samples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from rich.text import Text

from hypocenter.cli.answer_format import format_option, show_answer
from hypocenter.cli.damage import tell_damage
from hypocenter.cli.output_file import refuse_existing, write_file
from hypocenter.cli.say import say
from hypocenter.diagnose.judged_evidence import load
from hypocenter.diagnose.numbers import listed, short
from hypocenter.diagnose.records import Records
from hypocenter.diagnose.spike_list import Answer, Spike, answer, place_of
from hypocenter.in_words import counted
from hypocenter.record.reader import open_run
from hypocenter.report import wording
from hypocenter.report.columns import aligned
from hypocenter.report.formats.terminal import to_text, wrapped
from hypocenter.report.screen import Screen

EXIT = {"healthy": 0, "jumped": 1}
_COLUMNS = ("step", "rank", "what", "value", "usually", "cause", "where", "samples", "in the data set")


@click.command("spikes")
@click.argument("run", type=click.Path(path_type=Path))
@format_option()
@click.option(
    "--export", "export", type=click.Path(path_type=Path), metavar="FILE",
    help="Write the data set indices of the samples that made something jump, one on a line: what to skip.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
def command(run: Path, format_name: str, export: Path | None, force: bool) -> int:
    """List the steps of RUN whose loss or gradient jumped: value, usual value, place, samples.

    Exit code: 0 nothing jumped, 1 something did, 4 nothing to read.
    """
    refuse_existing(export, "list", flag="--export", force=force)
    recording = open_run(run)
    pieces = load(recording.evidence_files(), recording.directory).found
    found = answer(recording.run.name, Records.of(recording), pieces)
    show_answer("spikes", found, format_name, _on_screen)
    if export is not None:
        write_file(export, "".join(f"{index}\n" for index in found.to_skip), "list", flag="--export")
        unknown = sum(bool(spike.samples) and not spike.dataset_indices for spike in found.spikes)
        more = f"; of {unknown} steps the indices of the samples are not known" if unknown else ""
        n = len(found.to_skip)
        say(f"{n} {'index' if n == 1 else 'indices'} written to {export}{more}")
    tell_damage(recording)
    return EXIT[found.status]


def _on_screen(found: Answer, screen: Screen) -> str:
    return to_text(_lines(found, screen.width), screen)


def _lines(found: Answer, width: int) -> Iterator[Text]:
    if not found.spikes:
        text = f"nothing jumped in {counted(found.steps, 'step')}"
        yield Text.assemble(("healthy: ", "bold green"), (text, "bold"))
        return
    proven = sum(spike.severity == "warning" for spike in found.spikes)
    head = f"{counted(len(found.spikes), 'step')} of {found.steps:,}; the origin of {proven} is proven"
    yield from wrapped(Text("jumped: ", "bold yellow"), Text(head, "bold"), width, indent=4)
    yield Text()
    rows = [_COLUMNS, *(tuple(map(wording.clean, _cells(spike))) for spike in found.spikes)]
    yield from map(Text, aligned(rows, right=frozenset({0, 1, 3, 4})))


def _cells(spike: Spike) -> tuple[str, ...]:
    return (
        str(spike.step), str(spike.rank), spike.of, short(spike.value), short(spike.usual), spike.cause or "not known",
        place_of(spike), listed(spike.samples) if spike.samples else "",
        listed(spike.dataset_indices) if spike.dataset_indices else "",
    )  # fmt: skip
