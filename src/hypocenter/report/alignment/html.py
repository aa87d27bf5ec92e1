"""One offline page without scripts: the answer, every stage with its evidence, bars of local norms, curves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from markupsafe import Markup

from hypocenter import __version__
from hypocenter.align.alignment import Alignment, StageResult
from hypocenter.compare.curves.comparison import CurveComparison, CurveSide, Departure, Track
from hypocenter.report import alignment, curves_picture, wording
from hypocenter.report import page as report_page
from hypocenter.report.alignment.terminal import MARKS, WORDS, where
from hypocenter.report.page.document import file_text, policy, shell

suffix = ".html"
_CARDS = {"stopped": "error", "aligned": "healthy", "cannot-tell": "cannot-tell"}
WIDTH = 760  # pixels
_MOST = 60  # parameters drawn
_LEFT, _RIGHT, _ROW, _TOP = 240, 170, 18, 50
_SPAN = 4.0  # decades that a bar's length covers
STYLE = """
svg.bars { --fg: #1b1f24; --mute: #57606a; --base: #8c959f; --cand: #1f6f8b; --bad: #c42b24; --bg: #ffffff;
  --band: #c42b2418;
  font: 11px ui-monospace, "DejaVu Sans Mono", monospace; max-width: 100%; height: auto; }
@media (prefers-color-scheme: dark) { svg.bars { --fg: #e6e8eb; --mute: #9aa4af; --base: #6e7781; --cand: #7cc0ea;
  --bad: #ff6b63; --band: #ff6b6322; --bg: #0f1216; } }
.bars .ground { fill: var(--bg); }
.bars text { fill: var(--fg); } .bars .mute { fill: var(--mute); } .bars .end { text-anchor: end; }
.bars .base { fill: var(--base); } .bars .cand { fill: var(--cand); } .bars .bad { fill: var(--bad); }
.bars .row { fill: var(--band); } .bars .mid { text-anchor: middle; }
.bars .decade { stroke: var(--mute); stroke-opacity: .3; fill: none; }
""".strip()
_NAMES = {"loss": "loss", "grad_norm": "grad norm"}


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
    """Return the page as HTML text, which loads nothing and runs no script."""
    styles = "\n".join([
        file_text(report_page.__name__, "style.css"), file_text(alignment.__name__, "align.css"), curves_picture.STYLE,
        STYLE,
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
        yield Markup(inline_norms(stage.figures["local_norms"]))
    for curve in stage.figures.get("curves", ()):
        if (drawn := inline_curve(curve)) is not None:
            yield Markup(drawn)


def norms_svg(norms: Sequence[dict[str, Any]]) -> str:
    """Draw the norms as an SVG file."""
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + inline_norms(norms, with_style=True) + "\n"


def inline_norms(norms: Sequence[dict[str, Any]], *, with_style: bool = False) -> str:
    """Draw the norms as an SVG element of a page, which has to bring STYLE itself unless `with_style`.

    What differs is never left out; others stand in order until there is no more room.
    """
    style = f"<style>{STYLE}</style>" if with_style else ""
    ground = f'<rect class="ground" width="{WIDTH}" height="100%"/>' if with_style else ""
    shown = _chosen(norms)
    sizes = [value for one in shown for value in (_size(one, "baseline"), _size(one, "candidate")) if value > 0]
    most = max(sizes, default=1.0)
    height = _TOP + _ROW * len(shown) + 8
    cut = f", {len(norms) - len(shown)} not shown" if len(shown) < len(norms) else ""
    head = f"local norm of each parameter's gradient, step 0 (a decade is {_room() / _SPAN:.0f} px{cut})"
    return (
        f'<svg class="bars" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img">{style}<title>{escape(head)}</title>{ground}'
        f'<text class="mute end" x="{_LEFT - 8}" y="20">parameter</text>'
        f'<rect class="base" x="{_LEFT}" y="13" width="16" height="6"/>'
        f'<text class="mute" x="{_LEFT + 22}" y="20">baseline</text>'
        f'<rect class="cand" x="{_LEFT + 92}" y="13" width="16" height="6"/>'
        f'<text class="mute" x="{_LEFT + 114}" y="20">candidate: norm of gradient</text>'
        f'<text class="mute end" x="{WIDTH - 80}" y="{_TOP - 8}">apart</text>'
        f'<text class="mute end" x="{WIDTH - 8}" y="{_TOP - 8}">in floors</text>'
        f"{''.join(_decades(most, height))}"
        f"{''.join(_row(one, at, most) for at, one in enumerate(shown))}"
        f"{_rest(cut, height)}</svg>"
    )


def _decades(most: float, height: int) -> Iterator[str]:
    """Yield a line for each power of ten that is on the axis, with its number above."""
    highest = math.floor(math.log10(most))
    for exponent in range(highest, highest - int(_SPAN), -1):
        x = _LEFT + _length(10.0**exponent, most)
        yield f'<path class="decade" d="M{x} {_TOP - 4}V{height - 8}"/>'
        yield f'<text class="mute mid" x="{x}" y="{_TOP - 8}">1e{exponent}</text>'


def _rest(cut: str, height: int) -> str:
    return f'<text class="mute" x="8" y="{height - 2}">{escape(cut.strip(", "))}</text>' if cut else ""


def _chosen(norms: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    apart = [one for one in norms if one["verdict"] == "differs"][:_MOST]
    room = max(_MOST - len(apart), 0)
    agreeing = [one for one in norms if one["verdict"] != "differs"][:room]
    kept = {id(one) for one in (*apart, *agreeing)}
    return [one for one in norms if id(one) in kept]


def _row(one: dict[str, Any], at: int, most: float) -> str:
    y = _TOP + at * _ROW
    bad = one["verdict"] == "differs"
    return "".join(_parts(one, y, most, bad=bad))


def _parts(one: dict[str, Any], y: int, most: float, *, bad: bool) -> Iterator[str]:
    if bad:
        yield f'<rect class="row" x="0" y="{y - 1}" width="{WIDTH}" height="{_ROW}"/>'
    name = escape(wording.shortened(wording.clean(str(one["site"])), 34))
    yield f'<text class="{"bad " if bad else ""}end" x="{_LEFT - 8}" y="{y + 12}">{name}</text>'
    for side, style, top in (("baseline", "base", y + 2), ("candidate", "bad" if bad else "cand", y + 9)):
        yield f'<rect class="{style}" x="{_LEFT}" y="{top}" width="{_length(_size(one, side), most)}" height="6"/>'
    for x, words in zip((WIDTH - 80, WIDTH - 8), _apart(one), strict=True):
        yield f'<text class="{"bad" if bad else "mute"} end" x="{x}" y="{y + 12}">{words}</text>'


def _apart(one: dict[str, Any]) -> tuple[str, str]:
    error, floor = _size(one, "error"), _size(one, "floor")
    mark = {"differs": "≠", "equal": "=", "cannot-tell": "?"}.get(str(one["verdict"]), "≈")
    times = f"{error / floor:.2g} ×" if floor else "floor 0"
    return f"{mark} {error:.2g}", times if error else ""


def _room() -> int:
    return WIDTH - _LEFT - _RIGHT


def _length(value: float, most: float) -> float:
    if not value > 0:
        return 0.0
    return round(max(_room() * (1 + math.log10(value / most) / _SPAN), 1.0), 1)


def _size(one: dict[str, Any], name: str) -> float:
    value = one.get(name)
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else 0.0


def curve_svg(figure: dict[str, Any]) -> str | None:
    """Draw the chart as an SVG file; None when there are fewer than two points."""
    found = _comparison(figure)
    return curves_picture.document(found) if found is not None else None


def inline_curve(figure: dict[str, Any]) -> str | None:
    """Draw the chart as an SVG element of a page; None when there are fewer than two points."""
    found, name = _comparison(figure), _name(figure)
    if found is None:
        return None
    return curves_picture.inline(found, name="loss" if name.startswith("repeat") else name)


def _name(figure: dict[str, Any]) -> str:
    return _NAMES.get(str(figure.get("name")), str(figure.get("name")))


def _comparison(figure: dict[str, Any]) -> CurveComparison | None:
    steps = tuple(int(step) for step in figure.get("steps", ()))
    if len(steps) < 2:
        return None
    baseline, candidate = _numbers(figure, "baseline"), _numbers(figure, "candidate")
    floor = _numbers(figure, "floor") or (None,) * len(steps)
    difference = tuple(
        b - a if a is not None and b is not None else None for a, b in zip(baseline, candidate, strict=True)
    )
    side = CurveSide(source="", kind="", n_points=len(steps))
    at = figure.get("departure")
    departure = None
    if isinstance(at, int):
        departure = Departure(series="loss", step=at, seen_step=at, until=None, gap=0.0, floor=0.0)
    return CurveComparison(
        sentence=str(figure.get("sentence") or _name(figure)), baseline=side, candidate=side, departure=departure,
        track=Track(steps=steps, baseline=baseline, candidate=candidate, difference=difference, floor=floor),
    )  # fmt: skip


def _numbers(figure: dict[str, Any], name: str) -> tuple[float | None, ...]:
    values: list[Any] = list(figure.get(name, ()))
    return tuple(float(value) if isinstance(value, (int, float)) else None for value in values)
