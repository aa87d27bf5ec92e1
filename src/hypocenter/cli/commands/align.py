"""`hypocenter align PLAN`: bring two training programs to the same numbers, stage by stage."""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path

import click

from hypocenter.align.alignment import STAGES, Alignment
from hypocenter.align.engine import How, align, status_of
from hypocenter.align.plan import read_plan
from hypocenter.cli.answer_format import format_option, print_answer
from hypocenter.cli.group import did_you_mean
from hypocenter.cli.output_file import refuse_existing, write_file
from hypocenter.cli.say import say
from hypocenter.errors import ConfigError, UnknownNameError
from hypocenter.report import wording
from hypocenter.report.alignment import html, terminal
from hypocenter.report.screen import screen_of, write

EXIT = {"aligned": 0, "stopped": 1, "cannot-tell": 5}


@click.command("align", no_args_is_help=True)
@click.argument("words", nargs=-1, required=True, metavar="[status] PLAN | new")
@click.option("--from", "again_from", metavar="STAGE", help="Do this stage and those after it again: 3, or backward.")
@format_option()
@click.option(
    "--report", "-o", type=click.Path(path_type=Path), metavar="OUT.html", help="Write a page that opens offline."
)
@click.option("--force", is_flag=True, help="Overwrite OUT.html if it exists.")
def command(words: tuple[str, ...], again_from: str | None, format_name: str, report: Path | None, force: bool) -> int:
    """Align the two programs of PLAN: nine stages from configurations to long runs, until the first that fails.

    What was recorded and found is kept in PLAN.align/ and done again only if the programs or options changed. `align
    status PLAN` shows it and runs nothing; `align new` prints a plan to fill in. Exit code: 0 aligned, 1 stopped,
    5 cannot tell.
    """
    if words == ("new",):
        write(sys.stdout, resources.files("hypocenter.align").joinpath("template.toml").read_text(encoding="utf-8"))
        return 0
    is_status = len(words) == 2 and words[0] == "status"
    if len(words) != 1 and not is_status:
        fix = did_you_mean(
            words[0], ["status", "new"], otherwise="hypocenter align PLAN, or hypocenter align status PLAN"
        )
        raise ConfigError("one plan at a time", where=" ".join(words), fix=fix)
    refuse_existing(report, "report", flag="--report", force=force)
    plan = read_plan(words[-1])
    found = status_of(plan) if is_status else align(plan, How(tell=_tell, again_from=_stage(again_from)))
    if report is not None:
        _write_page(report, found)
    _print(found, format_name)
    return EXIT[found.status]


def _print(found: Alignment, format_name: str) -> None:
    if format_name == "html":
        write(sys.stdout, html.render(found))
    elif format_name != "terminal":
        print_answer("align", found, format_name)
    else:
        write(sys.stdout, terminal.render(found, screen_of(sys.stdout)))
        again = f"hypocenter align {found.plan}"
        say(f"next: {again}" if found.status != "aligned" else f"report: {again} --report aligned.html")


def _tell(text: str) -> None:
    say(wording.clean(text, 400))


def _stage(text: str | None) -> int | None:
    """Return the number of a stage, given by number or name; None for None."""
    if text is None or text in STAGES:
        return STAGES.index(text) if text is not None else None
    if text.isdigit() and int(text) < len(STAGES):
        return int(text)
    raise UnknownNameError(
        f"no stage is {text!r}", where="--from", fix=did_you_mean(text, list(STAGES), otherwise="a number from 0 to 8")
    )


def _write_page(target: Path, found: Alignment) -> None:
    text = html.render(found)
    write_file(target, text, "report", flag="--report")
    say(f"wrote {target} ({wording.byte_size(len(text.encode()))}); open it in a browser")
