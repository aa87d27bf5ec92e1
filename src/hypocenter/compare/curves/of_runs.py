"""Loss and grad norm of two recordings, ready to be drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hypocenter.compare.curves.catalogue import read_curve
from hypocenter.compare.curves.compare import compare_curves
from hypocenter.compare.curves.comparison import CurveComparison, Limits
from hypocenter.compare.curves.evidence import gather
from hypocenter.compare.curves.track import track_of
from hypocenter.errors import HypocenterError


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCurves:
    """One quantity of both runs."""

    name: str
    found: CurveComparison


def curves_of_runs(baseline: Path, candidate: Path, noise: Sequence[Path] = ()) -> tuple[NamedCurves, ...]:
    """The loss of both runs and, where both recorded it, the grad norm. Empty when there is nothing to compare."""
    try:
        mine, other = read_curve(baseline), read_curve(candidate)
        repeats = [read_curve(path) for path in noise]
        loss = compare_curves(mine, other, repeats)
    except HypocenterError:
        return ()
    norm = gather("grad_norm", mine, other, repeats, Limits(), loss.offset)

    def drawn() -> Iterator[NamedCurves]:
        if len(loss.track.steps) > 1:
            yield NamedCurves(name="loss", found=loss)
        if norm is not None and len(norm.pair.steps) > 1:
            about = f"grad norm over {len(norm.whole.steps):,} steps"
            yield NamedCurves(
                name="grad norm", found=replace(loss, sentence=about, departure=None, track=track_of(norm))
            )

    return tuple(drawn())
