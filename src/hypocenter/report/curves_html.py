"""The answer about two curves as one offline page without scripts: the sentence, the charts, each rule."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from hypocenter import __version__
from hypocenter.compare.curves.comparison import Check, CurveComparison
from hypocenter.report import alignment, curves_picture, page, wording
from hypocenter.report.page.document import file_text, policy, shell

_CARDS = {"accepted": "healthy", "departed": "error", "cannot-tell": "cannot-tell"}
_MARKS = {
    "pass": ("healthy", "✓ pass"), "fail": ("error", "✗ fail"), "cannot-tell": ("cannot-tell", "? cannot tell"),
    "skipped": ("", "- skipped"),
}  # fmt: skip


def render(found: CurveComparison, charts: Sequence[tuple[str, CurveComparison]]) -> str:
    """Return the page as HTML text.

    Args:
        charts: names of quantities, and a comparison whose track holds each.
    """
    folders = (page.__name__, "style.css"), (alignment.__name__, "align.css")
    styles = "\n".join([*(file_text(*one) for one in folders), curves_picture.STYLE])
    points = (
        ("baseline", [found.baseline.source]), ("candidate", [found.candidate.source]), ("why", found.why),
        ("next", found.next),
    )  # fmt: skip
    names = " against ".join(Path(side.source).name for side in (found.candidate, found.baseline))
    repeats = [word for side in found.noise for word in ("--noise", side.source)]
    return shell(page.__name__, "curves.html.j2").render(
        card=_CARDS[found.status], verdict=found.status.replace("-", " "), names=wording.clean(names, 120),
        sentence=wording.sentence(found.sentence),
        points=[(label, [wording.clean(text, 1000) for text in texts]) for label, texts in points if texts],
        notes=[wording.clean(note, 1000) for note in found.notes],
        drawings=[(name, Markup(_drawn(name, chart, found))) for name, chart in charts],
        checks=[_check(check) for check in found.checks], version=__version__, style=Markup(styles),
        policy=policy(styles, []),
        again=wording.command("curves", found.baseline.source, found.candidate.source, *repeats, "--plot", "OUT.html"),
    )  # fmt: skip


def _drawn(name: str, chart: CurveComparison, found: CurveComparison) -> str:
    """Draw a chart under its own sentence, if that is not the page's."""
    return curves_picture.inline(chart, name=name, is_titled=chart.sentence != found.sentence)


def _check(check: Check) -> dict[str, str]:
    card, word = _MARKS[check.status]
    numbers = {"limit": check.limit, "actual": check.actual}
    texts = {name: "" if value is None else wording.number(float(f"{value:.3g}")) for name, value in numbers.items()}
    step = "" if check.step is None else f"{check.step:,}"
    return {"name": check.name.replace("_", " "), "card": card, "word": word, "text": check.text, "step": step, **texts}
