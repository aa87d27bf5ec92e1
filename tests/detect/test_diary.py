"""Rows of the loss-scale diary become entries."""

from __future__ import annotations

import math

from hypocenter.detect.diary import FOUND_INF, SCALE, SCALED_GRAD, entry_of
from hypocenter.nouns import Reading, Summary


def number(site: str, value: float, **more) -> Reading:
    summary = Summary(n=1, sum=value, absmax=abs(value)) if math.isfinite(value) else Summary(
        n=1, n_nan=int(math.isnan(value)), n_posinf=int(value > 0)
    )  # fmt: skip
    return Reading(step=3, microbatch=0, phase="scaler", site=site, port="value", order=0, summary=summary, **more)


def gradient(site: str, n_bad: int, absmax: float, n: int = 100, **more) -> Reading:
    summary = Summary(n=n, n_nan=n_bad, absmax=absmax)
    return Reading(step=3, microbatch=0, phase="scaler", site=site, port=SCALED_GRAD, order=0, summary=summary, **more)


def test_no_scaler_no_entry():
    plain = Reading(step=3, microbatch=0, phase="grad", site=SCALE, port="grad", order=0)

    assert entry_of([]) is None
    assert entry_of([plain]) is None


def test_scale_kind_and_facts():
    entry = entry_of([number(SCALE, 65536.0, module="GradScaler"), number(f"{SCALE}.growth_tracker", 7.0)])

    assert entry is not None
    assert (entry.step, entry.scale, entry.kind, entry.facts) == (3, 65536.0, "GradScaler", {"growth_tracker": 7.0})


def test_a_scale_that_is_not_finite_is_told_as_it_is():
    for scale in (math.inf, math.nan, 0.0, 1e-310):
        entry = entry_of([number(SCALE, scale)])

        assert entry is not None
        assert entry.scale == scale or (math.isnan(scale) and math.isnan(entry.scale))


def test_culprits_are_worst_share_first_and_the_near_ones_largest_first():
    rows = [
        number(SCALE, 2.0), gradient("a", 1, 5.0), gradient("b", 50, 1.0), gradient("c", 0, 3.0), gradient("d", 0, 9.0),
        gradient("tiny", 1, 0.0, n=1),
    ]  # fmt: skip

    entry = entry_of(rows)

    assert entry is not None
    assert [r.site for r in entry.culprits] == ["tiny", "b", "a"]
    assert [r.site for r in entry.near] == ["d", "c"]


def test_devices_are_named_once_and_optimizers_counted():
    rows = [
        number(SCALE, 2.0), number(f"{FOUND_INF}cpu", 1.0, call=0), number(f"{FOUND_INF}cuda:0", 1.0, call=0),
        number(SCALE, 2.0), number(f"{FOUND_INF}cpu", 1.0, call=1), number(SCALE, 2.0),
        number(f"{FOUND_INF}cpu", 0.0, call=2),
    ]  # fmt: skip

    entry = entry_of(rows)

    assert entry is not None
    assert (entry.found_inf, entry.n_optimizers, entry.n_skipped) == (("cpu", "cuda:0"), 3, 2)


def test_a_parameter_may_have_any_name():
    entry = entry_of([number(SCALE, 2.0), gradient(SCALE, 1, 1.0), gradient(f"{SCALE}.growth_tracker", 0, 1.0)])

    assert entry is not None
    assert entry.facts == {}
    assert (len(entry.culprits), len(entry.near)) == (1, 1)


def test_what_a_replay_saw_is_not_the_scalers():
    assert entry_of([number(SCALE, 2.0, replay=True)]) is None
