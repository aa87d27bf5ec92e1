"""What `hypocenter cure` answers, against the published schema; `tests/contract/surface.txt` freezes it."""

import json
from dataclasses import fields, replace

import jsonschema
import pytest

from hypocenter.diagnose.cure import Answer, answer, chosen, needs_search
from hypocenter.diagnose.evidence import Alternative, Cure, Evidence, OpFacts
from hypocenter.diagnose.judged_evidence import judged_piece
from hypocenter.json_answer import published, to_json
from hypocenter.nouns import Source

CURED = Cure(
    status="cured", targets=("blocks.1.attn",), verified=True, minimal=True, replays=11, seconds=1.5, n_candidates=40,
    n_params=55, n_microbatches=1, scale=65536.0, lines=(Source(file="m.py", line=3),), ops=("blocks.1.attn:matmul",),
    api="hypocenter.island(...)", patch="--- a/m.py\n",
    alternatives=(Alternative(action="clamp", why_not="no", cost=float("inf"), error=None),),
)  # fmt: skip
NONE = Cure(status="no-cure", replays=2, why=("with all 40 modules in float32 the step is not finite either",))
SPENT = Cure(status="cannot-tell", replays=60, why=("the budget was spent",))


def failure(cure, step=5, **more):
    origin = OpFacts(index=0, op="aten.mul.Tensor", phase="forward", site="blocks.1.attn")
    evidence = Evidence(id=f"step-{step}", step=step, replayed=True, reproduced=True, origin=origin, cure=cure, **more)
    return judged_piece(evidence, rank=0, bundle=f"rank-00000/bundles/step-{step}")


def validate(found):
    jsonschema.Draft202012Validator(published(Answer)).validate(json.loads(to_json(found), parse_constant=pytest.fail))


def test_the_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(published(Answer))


@pytest.mark.parametrize("cure", [CURED, NONE, SPENT, None], ids=["cured", "no-cure", "spent", "none"])
def test_every_kind_of_answer_validates(cure):
    found = answer("0412", failure(cure))

    validate(found)
    assert found.status == (cure.status if cure is not None else "cannot-tell")
    assert list(json.loads(to_json(found))) == [field.name for field in fields(Answer)]


def test_a_cure_is_told_with_its_place():
    found = answer("0412", failure(CURED))

    assert (found.targets, found.action, found.verified, found.replays) == (("blocks.1.attn",), "fp32-island", True, 11)
    assert (found.step, found.rank, found.bundle) == (5, 0, "rank-00000/bundles/step-5")
    assert found.loss_scale == 65536.0


def test_without_any_failure_it_cannot_be_told_and_says_why():
    found = answer("0412", None, ["nothing was run again"])

    validate(found)
    assert found.status == "cannot-tell"
    assert found.why == ("nothing was run again", "no step of this recording failed and was examined")


def test_why_a_replay_was_not_possible_is_passed_on():
    found = answer("0412", failure(None, why_not="an input was changed in place"))

    assert found.why == ("an input was changed in place",)


def test_a_cured_failure_is_chosen_before_an_earlier_one_without():
    pieces = [failure(None, 1), failure(SPENT, 2), failure(NONE, 3), failure(CURED, 9), failure(CURED, 8)]

    assert chosen(pieces).finding.step == 8
    assert chosen(pieces[:3]).finding.step == 3
    assert chosen([]) is None


@pytest.mark.parametrize(("cure", "expected"), [(CURED, False), (NONE, False), (SPENT, True), (None, True)])
def test_a_rerun_is_wanted_only_where_it_could_tell_more(cure, expected):
    assert needs_search(failure(cure)) is expected
    assert not needs_search(None)


def test_numbers_that_are_not_finite_become_null():
    found = answer("0412", failure(replace(CURED, seconds=float("nan"))))

    assert json.loads(to_json(found))["alternatives"][0]["cost"] is None
