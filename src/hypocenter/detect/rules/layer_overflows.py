"""One layer keeps overflowing.

What it means
    Again and again the gradients of the same layer are too large for the loss scale. Each time the update is skipped
    and the scale falls for the whole model, until the gradients of all other layers are too small.

How it is decided
    Only skips that are neither warm-up nor probing count: the scale had lasted before. At least 5 of them, begun at
    3 different times at least, before the scale could grow once; it is then at a sixteenth or less of where it was,
    and below a quarter of every scale that had worked before. Under a fixed scale: one update in 20 at least.
    In 9 of 10 backward first went wrong at the same parameter, or below the same module: it is the last one of the
    model with a bad gradient, because everything before it gets its bad values from there.

What to do
    Let this layer compute in float32 (an fp32 island), or in bfloat16. If its largest gradient grows: clip, lower the
    learning rate, or look at what makes it unstable.

When it is wrong
    When gradients of the whole model grow and this layer is only the first to show it: compare its largest finite
    gradient with the others'. On recordings that do not say which parameters went bad it stays silent.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.scale_track import Repeated, Skip, module_of
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Remedy


@rule("HC202", "overflow-risk", severity="warning", reads=("scaler",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire at the skip with which one layer's share is certain."""
    skip, track = window.skip, window.history.scale
    found = track.repeated(skip) if skip is not None else None
    if skip is None or found is None:
        return
    site = module_of(found.name) if found.is_parameter else found.name
    below = [size for name, size in track.largest.items() if _is_below(name, site or found.name)]
    others = [size for name, size in track.largest.items() if not _is_below(name, site or found.name)]
    yield Finding(
        code="HC202",
        kind="overflow-risk",
        severity="warning",
        title=f"{site or found.name} keeps overflowing at the loss scale",
        step=found.falls[0].step,
        rank=window.rank,
        phase="grad",
        site=site,
        port="grad",
        param=found.name if found.is_parameter else None,
        cause="loss-scale-overflow",
        confidence="likely",
        remedy=Remedy(
            action="fp32-island",
            targets=(site,),
            text=f"compute {site or 'the model'} in float32 (hypocenter cure finds the smallest part that needs it)",
        ),
        why=(_counted(found, site or found.name, skip), *_sizes(below, others)),
    )


def _is_below(name: str, path: str) -> bool:
    return name == path or name.startswith(f"{path}.")


def _counted(found: Repeated, where: str, skip: Skip) -> str:
    return (
        f"in {found.n_skips} of {found.n_of} skips from step {found.falls[0].step} to {skip.step} backward first went "
        f"wrong at {where}, while the scale fell from {found.falls[0].scale:,.0f} to {_number(skip.scale)}"
    )


def _sizes(below: list[float], others: list[float]) -> tuple[str, ...]:
    if not below:
        return ()
    compared = f", of all others {max(others):.3g}" if others else ""
    return (f"its largest finite gradient, the scale taken out, was {max(below):.3g}{compared}",)


def _number(scale: float) -> str:
    return f"{scale:,.0f}" if scale >= 1 else f"{scale:.2g}"
