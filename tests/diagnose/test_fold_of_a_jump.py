"""One finding for one jump: what a rank's replay has proven explains what others, and other rules, say of it."""

import pytest

from hypocenter.diagnose.evidence import Evidence, TensorFacts
from hypocenter.diagnose.fold import fold
from hypocenter.diagnose.judged_evidence import judged_piece
from hypocenter.nouns import Finding, Summary, replace
from tests.diagnose.recordings import records_of

PROVEN = judged_piece(
    Evidence(
        trigger="spike", step=40, rank=1, world_size=2, replayed=True, reproduced=True, samples=(5,), n_samples=16,
        samples_confirmed=True, leaf=TensorFacts(name="[0]", dtype="float32", summary=Summary(n=4)), leaf_kind="batch",
        facts={"of": "the loss", "now": 47314.0, "usual": 0.32, "size": 3162.0, "usual_size": 3.3},
    ),
    rank=1,
)  # fmt: skip


def far_out(rank, step=40):
    return Finding(code="HC313", kind="spike", severity="warning", title="far out", step=step, rank=rank)


def noted(rank):
    return Finding(code="HC401", kind="spike", severity="note", title="the gradient's norm jumped", step=40, rank=rank)


def test_what_all_ranks_note_of_a_jump_is_one_finding_of_the_rank_that_has_the_sample():
    (only,) = fold([PROVEN], [noted(0), noted(1)], records_of({}))

    assert (only.finding.cause, only.finding.rank, only.finding.samples) == ("bad-sample", 1, (5,))
    assert "rank 0 -> it jumps there too" in only.finding.then


def test_the_gradient_before_the_reduction_is_explained_on_that_rank():
    (only,) = fold([PROVEN], [far_out(1)], records_of({}))

    assert only.finding.code == "HC401"


@pytest.mark.parametrize("finding", [far_out(0), far_out(1, step=41)])
def test_of_another_rank_or_step_it_is_not(finding):
    assert len(fold([PROVEN], [finding], records_of({}))) == 2


def test_without_a_proof_it_stays():
    codes = {each.finding.code for each in fold([], [noted(1), far_out(1)], records_of({}))}

    assert codes == {"HC401", "HC313"}


def test_what_is_noted_of_a_step_that_was_proven_like_an_earlier_one_belongs_to_it():
    again = judged_piece(replace(PROVEN.evidence, step=50), rank=1)

    (only,) = fold([PROVEN, again], [noted(1), replace(noted(1), step=50)], records_of({}))

    assert (only.finding.step, only.finding.severity) == (40, "warning")
