"""`hypocenter spikes RUN`: the steps whose loss or gradient jumped: where it began, in which samples."""

from __future__ import annotations

from pathlib import Path

import click

from hypocenter.cli.answer_format import format_option, show_answer
from hypocenter.cli.damage import tell_damage
from hypocenter.cli.output_file import refuse_existing, write_file
from hypocenter.cli.say import say
from hypocenter.diagnose.judged_evidence import load
from hypocenter.diagnose.records import Records
from hypocenter.diagnose.spike_list import answer
from hypocenter.record.reader import open_run
from hypocenter.report.spikes_screen import render

EXIT = {"healthy": 0, "jumped": 1}


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
    show_answer("spikes", found, format_name, render)
    if export is not None:
        write_file(export, "".join(f"{index}\n" for index in found.to_skip), "list", flag="--export")
        unknown = sum(bool(spike.samples) and not spike.dataset_indices for spike in found.spikes)
        more = f"; of {unknown} steps the indices of the samples are not known" if unknown else ""
        n = len(found.to_skip)
        say(f"{n} {'index' if n == 1 else 'indices'} written to {export}{more}")
    tell_damage(recording)
    return EXIT[found.status]
