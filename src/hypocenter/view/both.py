"""Two followed runs beside each other: their curves as far as both have come, compared as `hypocenter curves` does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from markupsafe import Markup

from hypocenter.compare.curves.curve import Curve, Series
from hypocenter.compare.curves.of_runs import drawn
from hypocenter.errors import HypocenterError
from hypocenter.nouns import StepRecord
from hypocenter.report import curves_picture, wording
from hypocenter.report.page.document import shell
from hypocenter.view import page
from hypocenter.view.following import FollowedRun
from hypocenter.view.shown import Piece, Shown

_KINDS = {"accepted": "healthy", "departed": "error", "cannot-tell": "cannot-tell"}
_QUANTITIES: dict[str, Callable[[StepRecord], float | None]] = {
    "loss": lambda record: record.loss,
    "grad_norm": lambda record: record.grad_norm,
    "lr": lambda record: record.lr,
}


def both_shown(baseline: FollowedRun, candidate: FollowedRun) -> Shown:
    """Return the page of two runs as they are now."""
    sentence, kind = "there are no two steps yet that both have", "note"
    try:
        found = drawn(curve_of(baseline), curve_of(candidate))
    except (HypocenterError, ValueError):
        found = ()
    drawings = [
        (one.name, Markup(curves_picture.inline(one.found, name=one.name, is_titled=at > 0)))  # the card is its title
        for at, one in enumerate(found)
    ]
    if found:
        kind = _KINDS.get(found[0].found.status, "note")
        sentence = wording.sentence(found[0].found.sentence)
    html = shell(page.__name__, "parts.html.j2").module.both(sentence, kind, drawings)  # pyright: ignore
    names = " against ".join(wording.clean(run.directory.name, 40) for run in (candidate, baseline))
    is_over = not baseline.is_running and not candidate.is_running
    return Shown(parts={"both": Piece(str(html).encode())}, title=names, turn="", is_over=is_over)


def curve_of(run: FollowedRun) -> Curve:
    """Return loss, gradient norm and learning rate, as far as they were kept."""
    records = run.course.records()
    series: dict[str, Series] = {}
    for name, of in _QUANTITIES.items():
        points = [(record.step, value) for record in records if (value := of(record)) is not None]
        if points:
            steps, values = zip(*points, strict=True)
            series[name] = Series(name=name, steps=np.array(steps, np.int64), values=np.array(values, np.float64))
    return Curve(source=str(run.directory), kind="recording", series=series, counts_from=0)
