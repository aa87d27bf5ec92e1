"""`hypocenter curves BASELINE CANDIDATE`: does the loss of one training follow another's, within the noise?"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from hypocenter.cli.answer_format import format_option, show_answer
from hypocenter.cli.on_option import on_option
from hypocenter.cli.output_file import refuse_existing, write_file
from hypocenter.compare.curves.catalogue import read_curve
from hypocenter.compare.curves.compare import compare_curves
from hypocenter.compare.curves.comparison import CurveComparison, Limits
from hypocenter.compare.curves.of_runs import drawn_as
from hypocenter.errors import ConfigError
from hypocenter.report import curves_html, curves_picture, curves_screen
from hypocenter.report.screen import can_draw

EXIT = {"accepted": 0, "departed": 1, "cannot-tell": 5}
_NUMBERS = {name: type(getattr(Limits(), name)) for name in Limits.__dataclass_fields__}


@click.command("curves")
@click.argument("baseline", type=click.Path(path_type=Path))
@click.argument("candidate", type=click.Path(path_type=Path))
@click.option(
    "--noise", "noise", multiple=True, type=click.Path(path_type=Path), metavar="RUN",
    help="A repeat of the baseline, from which its own error is measured; may be repeated.",
)  # fmt: skip
@click.option("--kind", metavar="NAME", help="Kind of the logs; told by their content if not given.")
@click.option("--offset", type=int, help="Add N to the candidate's steps; found out if not given.", metavar="N")
@click.option(
    "--limit", "limits", multiple=True, metavar="NAME=VALUE", help="Change a limit: loss=0.05, frozen_loss=0.001, …"
)
@on_option
@format_option()
@click.option("--plot", type=click.Path(path_type=Path), metavar="OUT.svg|OUT.html", help="Write charts, or a page.")
@click.option("--force", is_flag=True, help="Overwrite what is there.")
def command(
    baseline: Path, candidate: Path, noise: tuple[Path, ...], kind: str | None, offset: int | None,
    limits: tuple[str, ...], on: str, format_name: str, plot: Path | None, force: bool,
) -> int:  # fmt: skip
    """Compare the loss, gradient norm and learning rate of CANDIDATE with those of BASELINE, step by step.

    Each is a run directory or a log: trainer_state.json, Megatron-LM or MindFormers text, TensorBoard events, W&B
    offline files, CSV, JSON Lines. Exit code: 0 accepted, 1 departed, 4 nothing to read, 5 cannot tell.
    """
    if plot is not None and plot.suffix not in (".svg", ".html"):
        raise ConfigError(
            f"no chart is called {plot.name!r}", where="--plot", why="its ending says what to write",
            fix="end it in .svg or .html",
        )  # fmt: skip
    refuse_existing(plot, "chart", flag="--plot", force=force)
    found = compare_logs(baseline, candidate, noise, kind=kind, offset=offset, limits=limits, on=on)
    if plot is not None:
        mine, other, *repeats = (read_curve(path, kind=kind, on=on) for path in (baseline, candidate, *noise))
        charts = [(one.name, one.found) for one in drawn_as(found, mine, other, repeats)] or [("loss", found)]
        text = curves_html.render(found, charts) if plot.suffix == ".html" else curves_picture.sheet(charts)
        write_file(plot, text, "chart", flag="--plot")
    return answer(found, format_name)


def answer(found: CurveComparison, format_name: str) -> int:
    """Print the comparison and return the exit code."""
    show_answer("curves", found, format_name, partial(curves_screen.render, can_draw=can_draw(sys.stdout)))
    return EXIT[found.status]


def compare_logs(
    baseline: Path, candidate: Path, noise: tuple[Path, ...] = (), *, kind: str | None = None,
    offset: int | None = None, limits: tuple[str, ...] = (), on: str = "",
) -> CurveComparison:  # fmt: skip
    """Read the logs and compare them, as `hypocenter diff` does with logs, too.

    Args:
        limits: NAME=VALUE of fields of Limits.
        on: what looks at the ranks of those that are recordings.
    """
    allowed = limits_of(limits)
    mine, other, *repeats = (read_curve(path, kind=kind, on=on) for path in (baseline, candidate, *noise))
    return compare_curves(mine, other, repeats, limits=allowed, offset=offset)


def limits_of(words: tuple[str, ...]) -> Limits:
    """Return limits with some of them changed. Raises ConfigError for an unknown name or no number."""
    changed: dict[str, float] = {}
    for word in words:
        name, _, text = word.partition("=")
        name = name.strip().replace("-", "_")
        try:
            if name not in _NUMBERS:
                raise KeyError(name)
            changed[name] = _NUMBERS[name](text)
            if not 0 < changed[name] < float("inf"):
                raise ValueError(text)
        except (KeyError, ValueError) as error:
            why = f"there are {', '.join(_NUMBERS)}" if isinstance(error, KeyError) else "it needs a number above 0"
            raise ConfigError(f"no limit can be {word!r}", where="--limit", why=why, fix="--limit loss=0.05") from error
    return replace(Limits(), **changed)  # type: ignore[arg-type]
