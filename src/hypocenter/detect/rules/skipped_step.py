"""An update was skipped.

What it means
    The loss scaler saw a gradient that was not finite, skipped the update and lowered the scale. It does this
    on purpose: it starts too high and backs off until the scale fits (warm-up), and tries a higher one from time
    to time (probing). A skip that is neither shows that a gradient has grown.

How it is decided
    The step record says that the update was skipped. Warm-up lasts until 8 updates in a row went through; after
    that a scale above the last one that had lasted is a probe.

What to do
    Nothing, if the scale settles. If it keeps falling, see HC201 and HC202, which say so.

When it is wrong
    It is a fact, and only a note.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.scale_track import SkipKind
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding

_SENTENCES: dict[SkipKind, str] = {
    "warm-up": "warm-up: a loss scaler starts too high and halves its scale until all gradients fit",
    "probing": "probing: the scaler had taken a higher scale, as it does from time to time, and took it back",
    "fall": "neither warm-up nor probing: this scale had fitted before, so a gradient has grown",
}


@rule("HC106", "nonfinite", severity="note", reads=("scaler",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Note a skipped update, and which kind of skip it is."""
    if not window.skipped:
        return
    size = window.loss_scale
    scale = "" if size is None else f" at loss scale {size:,.0f}" if size >= 1 else f" at loss scale {size:g}"
    yield Finding(
        code="HC106",
        kind="nonfinite",
        severity="note",
        title=f"the update was skipped{scale}",
        step=window.step,
        rank=window.rank,
        phase="scaler",
        site="loss_scale",
        port="value",
        actual=size,
        why=() if size is None else (_SENTENCES[window.history.scale.kind(size)],),
    )
