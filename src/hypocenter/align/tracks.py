"""A comparison of curves as numbers for a chart."""

from __future__ import annotations

from hypocenter.compare.curves.comparison import CurveComparison

_STATUS = {"accepted": "within noise", "departed": "departed", "cannot-tell": "nobody can tell"}


def track_figures(found: CurveComparison, name: str = "loss") -> dict[str, object]:
    """Return the curves of a comparison as plain lists, for the page."""
    track = found.track
    return {
        "name": name, "steps": list(track.steps), "baseline": list(track.baseline), "candidate": list(track.candidate),
        "floor": list(track.floor), "sentence": f"{name}: {_STATUS[found.status]}",
        "departure": found.departure.step if found.departure is not None else None,
    }  # fmt: skip
