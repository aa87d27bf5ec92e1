"""One offline page without scripts: the answer, every stage with its evidence, bars of local norms, curves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from hypocenter import __version__
from hypocenter.align.alignment import Alignment, StageResult
from hypocenter.report import alignment, wording
from hypocenter.report import page as report_page
from hypocenter.report.alignment import bars, charts
from hypocenter.report.alignment.terminal import MARKS, WORDS, where
from hypocenter.report.curves import picture
from hypocenter.report.page.document import file_text, policy, shell

suffix = ".html"

_CARDS = {"stopped": "error", "aligned": "healthy", "cannot-tell": "cannot-tell"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One stage on the page."""

    number: int
    name: str
    verdict: str
    mark: str
    word: str
    sentence: str
    where: str
    why: tuple[str, ...]
    cause: str
    next: tuple[str, ...]
    runs: tuple[str, ...]
    seconds: str
    drawings: tuple[Markup, ...]
    is_open: bool


def render(found: Alignment) -> str:
    """The page as text. Nothing is loaded, and nothing runs."""
    styles = "\n".join([
        file_text(report_page.__name__, "style.css"), file_text(alignment.__name__, "align.css"), picture.STYLE,
        bars.STYLE,
    ])  # fmt: skip
    return shell(alignment.__name__, "shell.html.j2").render(
        status=found.status, card=_CARDS[found.status], sentence=wording.sentence(found.sentence),
        verdict="cannot tell" if found.status == "cannot-tell" else found.status,
        plan=wording.clean(found.plan), stages=[_shown(stage) for stage in found.stages], notes=found.notes,
        version=__version__, again=wording.command("align", found.plan, "--report", "OUT.html"),
        style=Markup(styles), policy=policy(styles, []),
    )  # fmt: skip


def _shown(stage: StageResult) -> Shown:
    certain = f" ({stage.confidence})" if stage.confidence and stage.cause != "unknown" else ""
    return Shown(
        number=stage.stage, name=stage.name, verdict=stage.verdict, mark=MARKS[stage.verdict],
        word=WORDS[stage.verdict], sentence=wording.sentence(stage.sentence), where=wording.clean(where(stage)),
        why=tuple(map(wording.sentence, stage.why)), cause=f"{stage.cause}{certain}" if stage.cause else "",
        next=tuple(wording.clean(line, 1000) for line in stage.next) if stage.verdict != "passed" else (),
        runs=tuple(map(wording.clean, stage.runs)), seconds=f"{stage.seconds:.1f} s" if stage.seconds >= 0.05 else "",
        drawings=tuple(_drawings(stage)), is_open=stage.verdict in ("failed", "cannot-tell"),
    )  # fmt: skip


def _drawings(stage: StageResult) -> Iterator[Markup]:
    if "local_norms" in stage.figures:
        yield Markup(bars.inline(stage.figures["local_norms"]))
    for curve in stage.figures.get("curves", ()):
        if (drawn := charts.inline(curve)) is not None:
            yield Markup(drawn)
