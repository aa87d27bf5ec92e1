"""A comparison of curves as numbers for a chart."""

from __future__ import annotations

from hypocenter.compare.curves.comparison import CurveComparison


def track_figures(found: CurveComparison, name: str = "loss") -> dict[str, object]:
    """Plain lists."""
    track = found.track
    return {
        "name": name, "steps": list(track.steps), "baseline": list(track.baseline), "candidate": list(track.candidate),
        "floor": list(track.floor), "sentence": found.sentence,
        "departure": found.departure.step if found.departure is not None else None,
    }  # fmt: skip
