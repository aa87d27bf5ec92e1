"""What a falling loss scale leaves behind becomes one finding: of the op that is to blame, else of the fall itself."""

from __future__ import annotations

import pytest

from hypocenter.detect.engine import Engine, rules
from hypocenter.diagnose.evidence import Evidence, OpFacts, Rerun, TensorFacts
from hypocenter.diagnose.fold import fold
from hypocenter.diagnose.judged_evidence import judged_piece
from hypocenter.nouns import Reading, Source, StepRecord, Summary, replace
from tests.diagnose.recordings import records_of as as_columns

CULPRIT = "blocks.1.attn.qkv.weight"


def records_of(pattern, ranks=1, first_scale=65536.0):
    """`s` a skip, `.` an update, `x` a skip with its evidence."""
    found, scale = {}, first_scale
    for step, mark in enumerate(pattern):
        for rank in range(ranks):
            found[rank, step] = StepRecord(
                step=step, loss=1.0, grad_norm=1.0, loss_scale=scale,
                skipped=mark != ".", n_bad_grads=4 * (mark != "."),
                finding=f"step-{step:06d}-nonfinite-grad" if mark == "x" else "",
            )  # fmt: skip
        scale *= 1.0 if mark == "." else 0.5
    return found


def folded(records, *evidence):
    """What the rules say of the records, and the evidence, folded."""
    engine, found = Engine(rules()), []
    for (rank, step), record in sorted(records.items(), key=lambda item: (item[0][1], item[0][0])):
        row = {"step": step, "microbatch": 0, "phase": "scaler", "order": 1}
        readings = [Reading(**row, site="loss_scale", port="value", summary=Summary(n=1, sum=record.loss_scale))]
        if record.skipped:
            readings.append(Reading(**row, site=CULPRIT, port="culprit", summary=Summary(n=1, n_nan=1)))
        found += engine.feed(rank, step, record, readings)
    pieces = [judged_piece(e, rank=e.rank) for e in evidence]
    return [f.finding for f in fold(pieces, found, as_columns(records))]


def alarms(findings):
    return [f for f in findings if f.severity != "note"]


def singular(step, **more):
    """The gradient of a square root at zero, which no scale mends."""
    zero = TensorFacts(name="self", dtype="float32", summary=Summary(n=4, n_hist=4, n_zero=1))
    out = TensorFacts(name="out[0]", dtype="float32", summary=Summary(n=4, n_nan=1))
    origin = OpFacts(
        index=9, op="aten.sqrt.default", phase="backward", site="pool", node="SqrtBackward0", inputs=(zero,),
        outputs=(out,), source=Source(file="train.py", line=7, text="x.sqrt()"),
    )  # fmt: skip
    facts = {"finite_at_scale_1": 0.0}
    rerun = Rerun(ran=True, finite=False, n_nonfinite=1)
    return Evidence(**{
        "trigger": "nonfinite-grad", "step": step, "loss_scale": 65536.0, "replayed_scale": 1.0, "origin": origin,
        "replayed": True, "reproduced": True, "bad_params": (CULPRIT,), "n_params": 6, "float64": rerun,
        "upstream_grad_zero": True, "facts": facts, **more,
    })  # fmt: skip


def too_large(step, **more):
    """A product in backward that the loss scale makes too large."""
    inputs = tuple(TensorFacts(name=n, dtype="float16", summary=Summary(n=8, absmax=300.0)) for n in ("self", "mat2"))
    out = TensorFacts(name="out[0]", dtype="float16", summary=Summary(n=8, n_posinf=2))
    origin = OpFacts(
        index=9, op="aten.bmm.default", phase="backward", site="blocks.1.attn", node="BmmBackward0", inputs=inputs,
        outputs=(out,), source=Source(file="train.py", line=9, text="scores @ v"),
    )  # fmt: skip
    return Evidence(**{
        "trigger": "skipped-step", "step": step, "loss_scale": 16384.0, "replayed_scale": 16384.0, "origin": origin,
        "replayed": True, "reproduced": True, "bad_params": ("embed.weight", CULPRIT), "n_params": 6, "limit": 65504.0,
        "float64": Rerun(ran=True, finite=True, absmax=1.1e5), "facts": {"finite_at_scale_1": 1.0}, **more,
    })  # fmt: skip


def test_the_op_that_no_scale_mends_leads_and_the_collapse_follows():
    records = records_of("." * 10 + "x" + "s" * 49)

    (finding,) = folded(records, singular(10))

    assert (finding.code, finding.cause, finding.step) == ("HC101", "sqrt-gradient-at-zero", 10)
    assert "loss scale 65,536 -> 5.8e-11, 50 skips (steps 10 to 59)" in finding.then
    assert "at loss scale 1 the step is not finite either: the scale is not the cause" in finding.why
    assert not any("later finding" in line for line in finding.then)


def test_it_leads_too_when_it_was_found_in_the_middle_of_the_skips():
    records = records_of("." * 10 + "s" * 3 + "x" + "s" * 40)

    found = folded(records, singular(13))

    assert [(f.code, f.step) for f in alarms(found)] == [("HC101", 13)]


def test_updates_that_go_through_in_between_do_not_make_it_two():
    records = records_of("." * 10 + "x" + "s" * 20 + "." + "s" * 5 + ".." + "s" * 5)

    (finding,) = folded(records, singular(10))

    assert any(
        line.startswith("loss scale 65,536 -> ") and "31 skips (steps 10 to 43)" in line for line in finding.then
    )


def test_a_layer_that_keeps_overflowing_later_in_the_fall_is_no_finding_of_its_own():
    records = records_of("x" + "s" * 30 + ".s" * 40)

    (finding,) = folded(records, singular(0))

    assert (finding.code, finding.step) == ("HC101", 0)


def test_parameters_ruined_by_a_scale_that_has_no_inverse_belong_to_its_fall():
    records = records_of("x" + "s" * 147 + "." * 4)
    for step in range(150, 152):
        records[0, step] = replace(records[0, step], loss=float("nan"))
    ruined = Evidence(
        id="step-000149-nonfinite-param", trigger="nonfinite-param", step=149, bad_params=("embed.weight",),
        leaf=TensorFacts(name="embed.weight", dtype="float32", summary=Summary(n=4, n_nan=4)),
    )  # fmt: skip

    (finding,) = folded(records, singular(0), ruined)

    assert (finding.code, finding.step) == ("HC101", 0)
    assert any("1 / loss scale is infinite" in line and "step 148" in line for line in finding.then)


def test_parameters_that_break_at_a_scale_with_an_inverse_are_another_matter():
    records = records_of("x" + "s" * 20 + "." * 4)
    ruined = Evidence(
        id="step-000022-nonfinite-param", trigger="nonfinite-param", step=22, bad_params=("embed.weight",),
        leaf=TensorFacts(name="embed.weight", dtype="float32", summary=Summary(n=4, n_nan=4)),
    )  # fmt: skip

    found = folded(records, singular(0), ruined)

    assert [(f.code, f.step) for f in alarms(found)] == [("HC101", 0), ("HC103", 22)]


def test_two_pieces_of_evidence_in_one_fall_are_one_finding():
    records = records_of("." * 10 + "x" + "s" * 20 + "x" + "s" * 20)

    (finding,) = folded(records, singular(10), singular(31))

    assert (finding.count, finding.step) == (2, 10)


def test_without_evidence_the_collapse_leads_and_its_cause_is_unknown():
    (finding,) = folded(records_of("." * 10 + "s" * 50))

    assert (finding.code, finding.kind, finding.severity) == ("HC201", "loss-scale-collapse", "error")
    assert (finding.cause, finding.step, finding.site, finding.param) == ("unknown", 10, "blocks.1.attn.qkv", CULPRIT)
    assert finding.then[0].startswith("loss scale 65,536 -> 5.8e-11, 50 skips")


def test_a_replay_that_was_not_possible_accuses_nobody_and_says_why():
    evidence = Evidence(
        trigger="nonfinite-grad",
        step=25,
        loss_scale=2.0,
        bad_params=(CULPRIT,),
        n_params=6,
        why_not="it was changed in place",
    )

    (finding,) = folded(records_of("." * 10 + "s" * 15 + "x" + "s" * 20), evidence)

    assert (finding.code, finding.cause, finding.step) == ("HC201", "unknown", 10)
    assert "it was changed in place" in finding.why


def test_all_ranks_are_one_finding():
    (finding,) = folded(records_of("." * 10 + "s" * 50, ranks=3))

    assert (finding.code, finding.rank, finding.count) == ("HC201", 0, 3)


def test_a_rank_that_was_fine_follows_the_one_that_was_not():
    fine = Evidence(trigger="skipped-step", step=12, rank=0, loss_scale=16384.0, replayed=True, why_not="finite here")

    (finding,) = folded(records_of("." * 10 + "xss" + "s" * 40, ranks=2), singular(10, rank=1), fine)

    assert (finding.rank, finding.cause) == (1, "sqrt-gradient-at-zero")
    assert "rank 0 -> not finite too" in finding.then


def test_a_layer_that_keeps_overflowing_gets_the_place_of_its_replay():
    records = records_of("." * 10 + "s...ss...ss....")

    found = folded(records, too_large(14))

    (finding,) = alarms(found)
    assert (finding.code, finding.severity, finding.step) == ("HC202", "warning", 10)
    assert (finding.cause, finding.confidence) == ("loss-scale-overflow", "proven")
    assert (finding.site, finding.op, finding.source.line) == ("blocks.1.attn", "aten.bmm.default", 9)
    assert "step 14 was replayed at loss scale 16,384" in finding.why
    assert "loss scale 65,536 -> 2,048, 5 skips (steps 10 to 20)" in finding.then
    assert (finding.remedy.action, finding.remedy.targets) == ("fp32-island", ("blocks.1.attn.qkv",))


def test_the_replay_of_another_layer_is_not_taken_for_it():
    records = records_of("." * 10 + "s...ss...ss....")

    found = folded(records, too_large(14, bad_params=("head.weight",)))

    (finding,) = alarms(found)
    assert (finding.code, finding.site, finding.confidence) == ("HC202", "blocks.1.attn.qkv", "likely")


def test_a_replayed_skip_that_came_to_nothing_is_a_note():
    found = folded(records_of("." * 10 + "s...s....."), too_large(10))

    assert alarms(found) == []


@pytest.mark.parametrize("n", [9, 15])
def test_warm_up_is_a_note_that_says_so(n):
    found = folded(records_of("s" * n + "." * 30, first_scale=2.0**24))

    (note,) = found
    assert (note.code, note.severity, note.count) == ("HC106", "note", n)
    assert note.why[0].startswith("warm-up")
    assert not any(line.startswith("loss scale") for line in note.then)


def test_warm_up_and_a_later_skip_are_two_notes():
    found = folded(records_of("sss" + "." * 12 + "s" + "." * 12))

    assert [(f.code, f.why[0].split(":")[0]) for f in found] == [
        ("HC106", "warm-up"), ("HC106", "neither warm-up nor probing"),
    ]  # fmt: skip


def test_lost_gradients_are_a_warning_with_the_share():
    facts = {"n_lost": 900.0, "n_elements": 1000.0, "n_dead": 2.0, "factor_log2": 16.0, "largest_lost": 1e-8}
    lost = {"trigger": "grad-underflow", "step": 3, "bad_params": ("layers.0.weight",), "n_params": 8, "facts": facts}

    for scale in (None, 4.0):
        finding = judged_piece(Evidence(**lost, loss_scale=scale, replayed=True, reproduced=True), rank=0).finding

        assert (finding.code, finding.kind, finding.severity) == ("HC203", "underflow", "warning")
        assert (finding.cause, finding.confidence, finding.site) == ("grad-underflow", "proven", "layers.0")
        assert finding.title.startswith("90% of the gradient's elements are lost")
