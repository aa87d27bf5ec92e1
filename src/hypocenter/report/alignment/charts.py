"""Curves of a stage as charts, from the plain numbers that were kept of them."""

from __future__ import annotations

from typing import Any

from hypocenter.compare.curves.comparison import CurveComparison, CurveSide, Departure, Track
from hypocenter.report.curves import picture

_NAMES = {"loss": "loss", "grad_norm": "grad norm"}


def document(figure: dict[str, Any]) -> str | None:
    """The chart as an SVG file; None when there are fewer than two points."""
    found = _comparison(figure)
    return picture.document(found) if found is not None else None


def inline(figure: dict[str, Any]) -> str | None:
    """The chart as SVG; None when there are fewer than two points."""
    found, name = _comparison(figure), _name(figure)
    if found is None:
        return None
    return picture.inline(found, name="loss" if name.startswith("repeat") else name)


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
