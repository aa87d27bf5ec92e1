"""A rank that was sent a value that is not finite is no cause: it stands under the rank that made it."""

from hypocenter.diagnose.evidence import Evidence, OpFacts, Rerun, TensorFacts
from hypocenter.diagnose.fold import fold
from hypocenter.diagnose.judged_evidence import judged_piece
from tests.diagnose.recordings import records_of


def evidence(rank, op, *, received):
    facts = TensorFacts(name="self", dtype="float32")
    return Evidence(
        id="step-000003-nonfinite-grad", step=3, rank=rank, world_size=2, replayed=True, reproduced=True, together=True,
        received=received, bad_params=("w",), n_params=1,
        origin=OpFacts(index=7, op=op, phase="forward", site="net", inputs=(facts,), outputs=(facts,)),
        float64=Rerun(why_not="not kept"),
    )  # fmt: skip


def test_one_finding_on_the_rank_that_made_the_value():
    made = judged_piece(evidence(1, "aten.exp.default", received=False), rank=1)
    came = judged_piece(evidence(0, "c10d.allreduce_.default", received=True), rank=0)

    (folded,) = fold(sorted([came, made], key=lambda e: not e.is_located), [], records_of({}))

    assert (folded.finding.rank, folded.finding.op) == (1, "aten.exp.default")
    assert folded.finding.then[-1] == "rank 0 -> not finite too"


def test_alone_it_says_how_the_value_came():
    came = judged_piece(evidence(0, "c10d.allreduce_.default", received=True), rank=0)

    assert not came.is_located
    assert came.finding.cause == "unknown"
    assert came.finding.title == "a value that was not finite came from another rank (c10d.allreduce_.default)"
