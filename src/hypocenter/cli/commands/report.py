"""`hypocenter report RUN -o FILE`: write a rendering of the diagnosis to a file."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hypocenter.cli.damage import tell_damage
from hypocenter.cli.on_option import on_option
from hypocenter.cli.output_file import refuse_existing, write_file
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.errors import ConfigError
from hypocenter.record.reader import open_run
from hypocenter.report import catalogue, wording
from hypocenter.report.screen import write


@click.command("report")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write; `-` for stdout. [report.html]")
@click.option("--format", "format_name", metavar="NAME", help="html, markdown, json, …; else by the file's ending.")
@click.option("--json", "as_json", is_flag=True, help="Same as --format json -o -.")
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
@on_option
def command(run: Path, output: Path | None, format_name: str | None, as_json: bool, force: bool, on: str) -> None:
    """Write RUN's diagnosis as one file: by default a page that opens offline in any browser."""
    if as_json:
        format_name, output = "json", Path("-") if output is None else output
    chosen = catalogue.by_name(format_name) if format_name else _by_ending(output)
    target = output or Path(f"report{chosen.suffix}")
    refuse_existing(target, "report", flag="-o", force=force)
    recording = open_run(run, on)
    text = chosen.render(recording, diagnose(recording))
    if str(target) == "-":
        write(sys.stdout, text)
        tell_damage(recording)
        return
    write_file(target, text, "report", flag="-o")
    size = wording.byte_size(len(text.encode()))
    write(sys.stderr, f"wrote {target} ({size})\nopen it in a browser, or type: {wording.command('show', str(run))}\n")
    tell_damage(recording)


def _by_ending(output: Path | None) -> catalogue.Format:
    if output is None or not output.suffix:
        return catalogue.by_name("html")
    known = catalogue.load().by_name
    fitting = [entry for entry in known.values() if entry.suffix == output.suffix]
    if not fitting:
        endings = sorted({entry.suffix for entry in known.values()})
        raise ConfigError(
            f"no report is written as {output.suffix}", where=f"-o {output}", why=f"there are {', '.join(endings)}",
            fix=f"hypocenter report RUN -o {output.with_suffix('.html')}, or say what it is with --format",
        )  # fmt: skip
    return fitting[0] if len(fitting) == 1 else catalogue.by_name("terminal")
