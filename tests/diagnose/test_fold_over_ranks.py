"""What several ranks say of themselves in the same words is one finding."""

from dataclasses import replace

from hypocenter.diagnose.fold import fold
from hypocenter.nouns import Finding
from tests.diagnose.recordings import records_of

ON_0 = Finding(
    code="HC257", kind="config", severity="warning", title="gradients are changed", step=4, rank=0, phase="optimizer",
    site="a.weight", cause="state-changed",
)  # fmt: skip


def test_the_others_are_named_in_the_first():
    (only,) = fold([], [ON_0, replace(ON_0, rank=1), replace(ON_0, rank=3)], records_of({}))

    assert only.finding.rank == 0
    assert "ranks 1, 3 -> the same" in only.finding.then


def test_another_step_or_place_is_another_finding():
    assert len(fold([], [ON_0, replace(ON_0, rank=1, step=5)], records_of({}))) == 2
    assert len(fold([], [ON_0, replace(ON_0, rank=1, site="b.weight")], records_of({}))) == 2


def test_the_same_rank_says_it_twice_as_ever():
    assert len(fold([], [ON_0, ON_0], records_of({}))) == 2
