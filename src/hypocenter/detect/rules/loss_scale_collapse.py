"""The loss scale collapses.

What it means
    The scaler skips update after update and halves its scale each time. Nothing is learned. A gradient is not
    finite however small the scale: NaN, or an infinity that the scale did not make.

How it is decided
    Either three skips at a scale below 1, where gradients are smaller than without any scaling (or eight in a
    row that end at the scaler's floor of at most 1); or 16 skips in a row after the scale had settled: 16 halvings
    use up the usual scale of 65,536. Before it has settled 48 skips in a row are needed, because a warm-up from 2^32
    may take 34. With a fixed scale 16 in a row, at any time. It is said once per fall; how long the fall was and
    from which scale to which is in `then`.

What to do
    Look at the cause: a replay at scale 1 tells whether the scale matters at all, and finds the operation. Without
    a replay start at the parameter named here. Restart from a checkpoint before the first skip, with an alarm on
    skips in a row.

When it is wrong
    When a program skips updates on purpose for that long, or a scaler starts far above 2^32.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.scale_track import Collapse, Skip, module_of
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding


@rule("HC201", "loss-scale-collapse", severity="error", reads=("scaler",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire at the skip that shows that the scale will not settle."""
    skip, track = window.skip, window.history.scale
    found = track.collapse(skip) if skip is not None else None
    if skip is None or found is None:
        return
    culprit, n = next(iter(found.culprits.items()), ("", 0))
    is_one = n >= 0.9 * found.n_skips
    yield Finding(
        code="HC201",
        kind="loss-scale-collapse",
        severity="error",
        title="the loss scale collapses"
        if track.is_dynamic
        else f"every update is skipped at loss scale {_number(skip.scale)}",
        step=found.first.step,
        rank=window.rank,
        phase="scaler",
        site=module_of(culprit) if culprit and is_one else "loss_scale",
        port="value",
        param=culprit if is_one and culprit else None,
        limit=1.0 if found.is_low else None,
        actual=skip.scale,
        why=(
            _how_long(found, skip, track.is_dynamic),
            *_low(found, skip),
            *((_blamed(culprit, n, found.n_skips, track.largest.get(culprit)),) if culprit else ()),
        ),
    )


def _how_long(found: Collapse, skip: Skip, is_dynamic: bool) -> str:
    if found.n_skips > 1 + skip.step - found.first.step:
        return f"{found.n_skips} updates were skipped up to step {skip.step}"
    in_a_row = " in a row" if found.n_skips == 1 + skip.step - found.first.step else ""
    fell = f" while the scale fell from {_number(found.first.scale)} to {_number(skip.scale)}" if is_dynamic else ""
    return f"{found.n_skips} updates{in_a_row} were skipped from step {found.first.step} to {skip.step}{fell}"


def _low(found: Collapse, skip: Skip) -> tuple[str, ...]:
    if not found.is_low:
        return ()
    return (f"at scale {_number(skip.scale)} gradients are no larger than without scaling: a lower scale cannot help",)


def _blamed(culprit: str, n: int, n_skips: int, largest: float | None) -> str:
    size = f"; the largest finite gradient of {culprit} was {largest:.3g}" if largest else ""
    return f"in {n} of {n_skips} skips backward first went wrong at {module_of(culprit) or culprit}{size}"


def _number(scale: float) -> str:
    return f"{scale:,.0f}" if scale >= 1 else f"{scale:.2g}"
