"""Step records in, the fall of a loss scale out."""

from hypothesis import given
from hypothesis import strategies as st

from hypocenter.diagnose.fall import Fall, fall_from, streaks
from hypocenter.nouns import StepRecord


def run(pattern, scale=65536.0, backoff=0.5):
    """`s` a skip, `.` an update: one record each."""
    records = []
    for step, mark in enumerate(pattern):
        records.append(StepRecord(step=step, loss=1.0, loss_scale=scale, skipped=mark == "s"))
        scale *= backoff if mark == "s" else 1.0
    return records


def test_fifty_skips_to_the_end_of_the_run():
    fall = fall_from(run("." * 10 + "s" * 50), 10)

    assert fall == Fall(first=10, last=59, n_skips=50, from_scale=65536.0, to_scale=65536.0 / 2**50)
    assert fall.sentence() == "loss scale 65,536 -> 5.8e-11, 50 skips (steps 10 to 59)"


@given(
    before=st.integers(0, 20), n=st.integers(1, 40), after=st.integers(1, 80), backoff=st.sampled_from([0.5, 0.25, 0.9])
)
def test_it_ends_where_updates_go_through_again(before, n, after, backoff):
    fall = fall_from(run("." * before + "s" * n + "." * after, backoff=backoff), 0)

    assert fall is not None
    assert (fall.first, fall.last, fall.n_skips) == (before, before + n - 1, n)
    assert abs(fall.to_scale / (65536.0 * backoff**n) - 1.0) < 1e-9


def test_skips_with_a_few_updates_between_are_one_fall_and_with_many_are_not():
    assert fall_from(run("ss...ss..s"), 0).n_skips == 5
    assert fall_from(run("ss" + "." * 70 + "ss"), 0).n_skips == 2


def test_a_scale_that_is_back_ends_it():
    records = [
        StepRecord(step=i, loss_scale=s, skipped=k)
        for i, (s, k) in enumerate([(8, True), (4, False), (8, False), (16, True)])
    ]

    assert fall_from(records, 0).last == 0


def test_without_a_skip_or_a_scale_there_is_none():
    assert fall_from(run("...."), 0) is None
    assert fall_from([StepRecord(step=0, skipped=True)], 0) is None


def test_streaks_are_unbroken():
    assert streaks(run(".ss.s..sss")) == [[1, 2], [4], [7, 8, 9]]
