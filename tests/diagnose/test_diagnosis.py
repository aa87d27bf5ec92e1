"""Recordings made by hand, and what is said of them: folding, order, status, hostile evidence."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest

from hypocenter.detect import engine
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.diagnose.evidence import Evidence, OpFacts, Rerun, TensorFacts
from hypocenter.nouns import Reading, Remedy, Run, Source, StepRecord, Summary
from tests.diagnose.recordings import RUN, put, recording

NAN = math.nan


def steps(*losses, n_bad_grads=None, **more):
    bad = n_bad_grads or {}
    more = {"grad_norm": 1.0, **more}
    return [StepRecord(step=i, loss=x, n_bad_grads=bad.get(i, 0), **more) for i, x in enumerate(losses)]


def overflow(step=2, **more):
    source = Source(file="/home/me/model.py", line=310, text="h = gelu * linear")
    out = TensorFacts(name="out[0]", dtype="float16", summary=Summary(n=64, n_posinf=12))
    inputs = tuple(TensorFacts(name=n, dtype="float16", summary=Summary(n=64, absmax=330.0)) for n in ("self", "other"))
    origin = OpFacts(
        index=9, op="aten.mul.Tensor", phase="forward", site="block.1.ffn", source=source, inputs=inputs, outputs=(out,)
    )
    norm = OpFacts(index=12, op="aten.mul.Tensor", phase="forward", site="block.1.norm")
    return Evidence(**{
        "trigger": "nonfinite-loss", "step": step, "origin": origin, "nan_maker": norm, "forward_finite": False,
        "limit": 65504.0, "float64": Rerun(ran=True, finite=True, absmax=1.1e5), "replayed": True, "reproduced": True,
        "chips": ("+inf ×12",), "n_params": 131, "replayed_bad_params": tuple(f"p{i}" for i in range(38)),
        "samples": (2,), "n_samples": 4, "samples_confirmed": True,
        "remedies": (
            Remedy(action="scale", text="scale first"),
            Remedy(action="fp32-island", targets=("block.1.ffn",), verified=True, text="run it in float32"),
        ),
        **more,
    })  # fmt: skip


def test_healthy_run_is_healthy(tmp_path):
    recorded = recording(tmp_path, records={0: steps(3.0, 2.0, 1.0)})

    found = diagnose(recorded)

    assert (found.status, found.findings, found.n_steps, found.n_ranks) == ("healthy", (), 3, 1)


def test_nothing_recorded_is_never_healthy(tmp_path):
    found = diagnose(recording(tmp_path))

    assert (found.status, found.why) == ("cannot-tell", ("no completed step was recorded",))


def test_a_run_of_which_the_recording_switched_itself_off_is_not_called_healthy(tmp_path):
    line = "switched off after an internal error, training goes on (before_backward)"
    recorded = recording(tmp_path, records={0: steps(1.0)}, run=Run(format=1, name="r", warnings=(line,)))

    assert (diagnose(recorded).status, diagnose(recorded).why) == ("cannot-tell", (line,))


def test_one_cause_is_one_finding_and_its_echoes_are_counted(tmp_path):
    losses = [1.0, 1.0, *[NAN] * 500]
    recorded = recording(tmp_path, records={0: steps(*losses, n_bad_grads=dict.fromkeys(range(2, 502), 131))})
    put(recorded, overflow())

    found = diagnose(recorded)

    (finding,) = found.findings
    assert found.status == "findings"
    assert (finding.code, finding.step, finding.site, finding.op) == ("HC102", 2, "block.1.ffn", "aten.mul.Tensor")
    assert (finding.cause, finding.confidence, finding.severity) == ("format-overflow", "proven", "error")
    assert (finding.limit, finding.actual, finding.samples) == (65504.0, 1.1e5, (2,))
    assert finding.then == (
        "the product -> NaN",
        "loss -> NaN (step 2)",
        "38 of 131 gradients -> NaN",
        "998 later findings (steps 3 to 501)",
    )
    assert finding.bundle == "rank-00000/bundles/step-000002-nonfinite-loss"


def test_the_first_verified_remedy_is_shown(tmp_path):
    recorded = recording(tmp_path, records={0: steps(1.0, 1.0, NAN)})
    put(recorded, overflow())

    remedy = diagnose(recorded).findings[0].remedy

    assert (remedy.action, remedy.verified) == ("fp32-island", True)


def test_clipping_is_named_as_the_spreader(tmp_path):
    recorded = recording(tmp_path, records={0: steps(1.0, 1.0, 1.0, n_bad_grads={2: 131})})
    put(
        recorded,
        overflow(
            trigger="nonfinite-grad", clip="clip_grad_norm_", bad_params=("energy.gain",),
            replayed_bad_params=("energy.gain",), forward_finite=True,
        )
    )  # fmt: skip

    finding = diagnose(recorded).findings[0]

    assert finding.param == "energy.gain"
    assert "1 of 131 gradients -> NaN" in finding.then
    assert "clip_grad_norm_ spread it from 1 to 131 parameters" in finding.then


def test_without_evidence_an_error_is_reported_but_the_cause_cannot_be_told(tmp_path):
    recorded = recording(tmp_path, records={0: steps(1.0, NAN, NAN, n_bad_grads={1: 9, 2: 9})})

    found = diagnose(recorded)

    (finding,) = found.findings
    assert found.status == "cannot-tell"
    assert found.why == ("step 1: the loss is NaN; there was no replay of this step",)
    assert (finding.code, finding.step, finding.cause) == ("HC102", 1, "unknown")
    assert finding.then == ("9 gradients -> NaN (step 1)", "2 later findings (step 2)")


def test_why_there_was_no_replay_is_told(tmp_path):
    recorded = recording(tmp_path, records={0: steps(1.0, NAN)})
    put(recorded, Evidence(trigger="nonfinite-loss", step=1, forward_finite=False, why_not="the inputs were mutated"))

    found = diagnose(recorded)

    assert (found.status, len(found.findings)) == ("cannot-tell", 1)
    assert found.why == ("step 1: the loss is not finite; the inputs were mutated",)


def test_evidence_of_a_named_op_with_an_unknown_cause_is_a_finding(tmp_path):
    recorded = recording(tmp_path, records={0: steps(1.0, 1.0, NAN)})
    put(recorded, overflow(float64=Rerun(ran=True, finite=True, absmax=7.0)))

    found = diagnose(recorded)

    assert (found.status, found.findings[0].cause, found.findings[0].site) == ("findings", "unknown", "block.1.ffn")


def test_at_level_modules_the_first_bad_module_leads_when_there_is_no_evidence(tmp_path):
    bad = Summary(n=8, n_nan=1)
    rows = [Reading(step=1, microbatch=0, phase="forward", site="b.1", port="out[0]", order=1, module="B", summary=bad)]
    recorded = recording(tmp_path, rows={0: rows}, records={0: steps(1.0, NAN, n_bad_grads={1: 9})})

    (finding,) = diagnose(recorded).findings

    assert (finding.code, finding.site, finding.severity) == ("HC104", "b.1", "error")
    assert finding.then == ("loss -> NaN (step 1)", "9 gradients -> NaN (step 1)")


def test_the_rank_that_can_name_the_cause_leads_and_the_others_are_listed(tmp_path):
    records = {rank: steps(1.0, 1.0, NAN, n_bad_grads={2: 131}) for rank in range(4)}
    recorded = recording(tmp_path, records=records)
    for rank in (0, 1, 2):
        put(recorded, Evidence(step=2, rank=rank, replayed=True, why_not="the replay was finite"), rank=rank)
    put(recorded, overflow(rank=3), rank=3)

    (finding,) = diagnose(recorded).findings

    assert (finding.rank, finding.cause) == (3, "format-overflow")
    assert "ranks 0 to 2 -> not finite too" in finding.then


def test_the_same_cause_at_later_steps_is_the_same_finding(tmp_path):
    recorded = recording(tmp_path, records={0: steps(1.0, NAN, 1.0, NAN, 1.0, NAN, 1.0)})
    for step in (1, 3, 5):
        put(recorded, overflow(step=step))

    (finding,) = diagnose(recorded).findings

    assert (finding.step, finding.count) == (1, 3)
    assert "the same at 2 later steps: 3, 5" in finding.then


def test_two_causes_with_healthy_steps_between_are_two_findings_in_order(tmp_path):
    recorded = recording(tmp_path, records={0: steps(1.0, NAN, 1.0, NAN)})
    leaf = TensorFacts(name="[features]", dtype="float32", shape=(4, 8), summary=Summary(n=32, n_nan=1))
    put(recorded, overflow(step=3))
    put(
        recorded,
        Evidence(trigger="nonfinite-loss", step=1, leaf=leaf, leaf_kind="batch", replayed=True, reproduced=True,
                 chips=("NaN ×1",), indices=((1, 5),), forward_finite=False)
    )  # fmt: skip

    first, second = diagnose(recorded).findings

    assert (first.step, first.cause, first.phase, first.port) == (1, "bad-input", "data", "batch[features]")
    assert "batch[features] [4, 8] float32: NaN ×1, first at [1, 5]" in first.why
    assert (second.step, second.cause) == (3, "format-overflow")


def test_a_bad_parameter_after_a_bad_step_is_a_consequence_of_it(tmp_path):
    recorded = recording(tmp_path, records={0: steps(1.0, 1.0, NAN, NAN)})
    leaf = TensorFacts(name="head.weight", dtype="float16", summary=Summary(n=4, n_nan=4))
    put(recorded, overflow(step=2))
    put(
        recorded,
        Evidence(trigger="nonfinite-loss", step=3, leaf=leaf, leaf_kind="param", replayed=True, reproduced=True),
    )

    (finding,) = diagnose(recorded).findings

    assert finding.cause == "format-overflow"


def test_warm_up_of_a_scaler_is_one_note_and_healthy(tmp_path):
    skipped = [
        StepRecord(
            step=i,
            loss=1.0,
            grad_norm=1.0,
            n_bad_grads=5 if i < 6 else 0,
            skipped=i < 6,
            loss_scale=2.0 ** (20 - min(i, 6)),
        )
        for i in range(10)
    ]
    recorded = recording(tmp_path, records={0: skipped})

    found = diagnose(recorded)

    (note,) = found.findings
    assert (found.status, note.code, note.severity, note.count) == ("healthy", "HC106", "note", 6)
    assert note.then == ("the same at 5 later steps: 1 to 5",)


def test_an_overflow_that_became_exact_zeros_is_an_error_and_a_masked_one_a_warning(tmp_path):
    for name, zeroed, severity in (("zeros", 1.0, "error"), ("masked", 0.0, "warning")):
        recorded = recording(tmp_path / name, records={0: steps(1.0, 1.0, 1.0)})
        killer = OpFacts(index=11, op="aten.rsqrt.default" if zeroed else "aten.where.self", phase="forward", site="b")
        put(
        recorded,
            overflow(trigger="dead-grad", killed_by=killer, nan_maker=None, forward_finite=True,
                     replayed_bad_params=(), facts={"zeroed": zeroed})
        )  # fmt: skip

        found = diagnose(recorded)

        assert (found.status, found.findings[0].severity) == ("findings", severity)
        assert any(line.startswith("killed by") for line in found.findings[0].why)


def test_an_activation_whose_overflow_nothing_proves_is_a_note(tmp_path):
    recorded = recording(tmp_path, records={0: steps(1.0, 1.0, 1.0)})
    put(recorded, overflow(trigger="nonfinite-activation", float64=Rerun(), nan_maker=None, forward_finite=True))

    assert (diagnose(recorded).status, diagnose(recorded).findings[0].severity) == ("healthy", "note")


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"null", b"[]", b'{"format": 2}', b'{"trigger": "made-up"}', b'{"step": "x"}', b"\xff\xfe\x00",
        b'{"origin": {"op": 1}}', b"[" * 100_000, b'{"remedies": [{}]}', b'{"float64": {"absmax": NaN}}',
    ],
    ids=lambda data: repr(data[:24]),
)  # fmt: skip
def test_hostile_evidence_is_a_note(tmp_path, data):
    recorded = recording(tmp_path, records={0: steps(1.0, NAN)})
    folder = tmp_path / "rank-00000" / "bundles" / "step-000001-nonfinite-loss"
    folder.mkdir(parents=True)
    (folder / "evidence.json").write_bytes(data)

    found = diagnose(recorded)

    assert [n for n in found.notes if n.startswith("the evidence in rank-00000/bundles/step-000001")]
    assert (found.status, found.findings[0].code) == ("cannot-tell", "HC102")


def test_evidence_of_absurd_values_does_not_raise(tmp_path):
    recorded = recording(tmp_path, records={0: steps(1.0, 1.0, NAN)})
    origin = replace(overflow().origin, op="", scalars={"dim": [10**18], "exponent": "x"})
    put(
        recorded,
        overflow(step=-(2**62), origin=origin, samples=(-1,) * 1000, index_shape=(2**60, 2**60), limit=0.0,
                 history=((0, 1e308), (2**60, 1e-320)), facts={"n_masked_rows": "many", "clamp_bound": "no"})
    )  # fmt: skip

    assert len(diagnose(recorded).findings) == 2


def test_evidence_larger_than_any_real_one_is_a_note(tmp_path):
    recorded = recording(tmp_path, records={0: steps(1.0)})
    folder = tmp_path / "rank-00000" / "bundles" / "x"
    folder.mkdir(parents=True)
    (folder / "evidence.json").write_bytes(b" " * (16 << 20) + b"{}")

    assert any("larger than 16 MiB" in note for note in diagnose(recorded).notes)


def test_what_is_missing_of_a_recording_is_noted(tmp_path):
    recorded = recording(tmp_path, records={0: steps(1.0)}, run=replace(RUN, world_size=4))

    assert diagnose(recorded).notes == ("3 of 4 ranks left no recording: 1, 2, 3",)


def test_diagnosing_imports_no_training_framework_and_nothing_heavy():
    code = (
        "import sys; import hypocenter.diagnose.diagnosis\n"
        "from hypocenter.diagnose.verdicts import causes; from hypocenter.detect.engine import rules\n"
        "causes(); rules()\n"
        "print(sorted({'torch', 'mindspore', 'duckdb', 'rich', 'click', 'jinja2', 'safetensors'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_a_finding_of_another_kind_is_not_folded_away(tmp_path):
    recorded = recording(tmp_path, records={0: steps(1.0, 1.0, NAN)})
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "from hypocenter.detect.engine import rule\n"
        "from hypocenter.nouns import Finding\n"
        "@rule('TEST3', 'data', severity='warning')\n"
        "def check(window):\n"
        "    if window.step == 2:\n"
        "        yield Finding(code='TEST3', kind='data', severity='warning', title='t', step=2)\n"
    )
    put(recorded, overflow())

    try:
        found = diagnose(recorded, plugins=(str(plugin),)).findings
    finally:
        engine.CATALOGUE._entries.pop("TEST3", None)

    assert [f.code for f in found] == ["HC102", "TEST3"]
