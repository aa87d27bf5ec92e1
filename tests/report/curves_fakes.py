"""A comparison of loss curves made by hand."""

from __future__ import annotations

from hypocenter.compare.curves.comparison import Check, CurveComparison, CurveSide, Departure, Spike, Track


def answer(**others: object) -> CurveComparison:
    side = CurveSide(source="a.log", kind="megatron", n_points=100, first_step=0, last_step=99, problems=("torn line",))
    track = Track(
        steps=(0, 50, 99), baseline=(3.0, 2.0, 1.0), candidate=(3.0, 2.0, 1.5), difference=(0.0, 0.0, 0.5),
        floor=(0.1, 0.1, 0.1),
    )  # fmt: skip
    given: dict[str, object] = {
        "status": "departed", "sentence": "departed at step 51: <the loss> is 0.5 above", "baseline": side,
        "candidate": side, "track": track, "why": ("the loss is apart",), "next": ("look at the optimizer",),
        "departure": Departure(series="loss", step=51, seen_step=60, until=None, gap=0.5, floor=0.1),
        "checks": (Check(name="sustained", status="fail", text="apart from step 51 on", limit=0.1, actual=0.5),),
        "spikes": tuple(
            Spike(side="candidate", step=n, value=9.0, usual=2.0, size=50.0, digest="ab12-cd") for n in range(7)
        ),
    }  # fmt: skip
    return CurveComparison(**{**given, **others})  # type: ignore[arg-type]
