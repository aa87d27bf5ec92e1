"""A field of the batch against those before: what may be chance is told as such."""

from __future__ import annotations

import pytest

from hypocenter.detect.batch_fields import KNOWN, Field
from hypocenter.nouns import Reading, Summary

SHARE = 0.1  # of labels that are 1


def labels(n: int, share: float) -> Reading:
    """Labels 0 and 1."""
    classes = (1 - share, share, *(0.0,) * 14)
    most = float(share > 0)
    summary = Summary(
        n=n, n_zero=round(n * (1 - share)), min=0.0, max=most, sum=n * share, sumsq=n * share, absmax=most
    )
    return Reading(
        step=0, microbatch=0, phase="data", site="batch.loss[0]", port="field", order=0, dtype="int64", shape=(n,),
        summary=summary, shares=(1 - share, share, 0.5, 2 / n, 0.0, 0.0, 0.0, *classes),
    )  # fmt: skip


@pytest.mark.parametrize(("n", "what"), [(64, "alike"), (1024, "constant")])
def test_labels_that_are_all_equal_once_are_a_law_only_where_that_is_no_chance(n: int, what: str) -> None:
    field = Field()
    for _ in range(KNOWN + 8):
        assert field.add(labels(n, SHARE)) is None
    field.highest = 2.0  # labels, not a mask

    change = field.add(labels(n, 0.0))

    assert change is not None
    assert change.what == what
