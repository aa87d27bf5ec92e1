"""Hand-built evidence for each bug, and near misses that must get another name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hypocenter.diagnose.evidence import Evidence, OpFacts, Rerun, TensorFacts
from hypocenter.diagnose.verdicts import judge
from hypocenter.nouns import Source, Summary

FLOAT16_MAX, FLOAT32_MAX = 65504.0, 3.4028234663852886e38


def tensor(name="self", dtype="float16", shape=(4,), *, literal_inf=False, origin="", **summary):
    n = 1
    for size in shape:
        n *= size
    summary = Summary(**{"n": n, "n_hist": n, "min": 1.0, "max": 1.0, "absmax": 1.0, "sum": float(n), **summary})
    return TensorFacts(name=name, dtype=dtype, shape=shape, summary=summary, literal_inf=literal_inf, origin=origin)


def op(name, *inputs, out, phase="forward", text="", **more):
    return OpFacts(
        index=7,
        op=name,
        phase=phase,
        site="block.0",
        inputs=inputs,
        outputs=(out,),
        source=Source(file="/home/me/model.py", line=12, text=text),
        **more,
    )


def proven_overflow(origin, absmax, *, limit=FLOAT16_MAX, **more):
    return Evidence(
        origin=origin,
        limit=limit,
        float64=Rerun(ran=True, finite=True, absmax=absmax),
        again=Rerun(ran=True, finite=False, equal_bits=True),
        replayed=True,
        reproduced=True,
        **more,
    )


def proven_singular(origin, **more):
    return Evidence(
        origin=origin,
        float64=Rerun(ran=True, finite=False, n_nonfinite=1),
        again=Rerun(ran=True, finite=False, equal_bits=True),
        replayed=True,
        reproduced=True,
        **more,
    )


def a1_linear():
    origin = op(
        "aten.addmm.default",
        tensor("self", shape=(16,)),
        tensor("mat1", shape=(8, 1024), absmax=8.0),
        tensor("mat2", shape=(1024, 16), absmax=8.1),
        out=tensor("out[0]", shape=(8, 16), n_posinf=12),
        module="Linear",
    )
    return proven_overflow(
        origin, 66246.0, trigger="nonfinite-loss", chips=("+inf ×12",), index_shape=(8, 16), indices=((2, 0),)
    )


def a3_key_sum():
    origin = op(
        "aten.sum.dim_IntList",
        tensor("self", shape=(2, 8192, 16), min=10.0, max=10.0, absmax=10.0, sum=10.0 * 2 * 8192 * 16),
        out=tensor("out[0]", shape=(2, 16), n_posinf=32),
        scalars={"dim": [1]},
    )
    killer = op("aten.div.Tensor", out=tensor("out[0]", n_zero=4))
    return proven_overflow(origin, 81920.0, trigger="dead-grad", killed_by=killer)


def a4_projection():
    origin = op(
        "aten.mm.default",
        tensor("self", shape=(64, 3), absmax=80.0),
        tensor("mat2", shape=(3, 3), absmax=1266.0),
        out=tensor("out[0]", shape=(64, 3), n_posinf=47),
    )
    return proven_overflow(origin, 7.6e4, trigger="nonfinite-activation", killed_by=op("aten.where.self", out=tensor()))


def a5_variance():
    origin = op(
        "aten.pow.Tensor_Scalar",
        tensor(absmax=300.0, shape=(4, 16)),
        out=tensor("out[0]", shape=(4, 16), n_posinf=64),
        scalars={"exponent": 2},
    )
    killer = op("aten.rsqrt.default", out=tensor())
    return proven_overflow(origin, 9e4, trigger="dead-grad", killed_by=killer, facts={"zeroed": 1.0})


def a8_masked_row():
    origin = op(
        "aten._softmax.default",
        tensor(shape=(4, 4), n_neginf=7, literal_inf=True),
        out=tensor("out[0]", shape=(4, 4), n_nan=4),
    )
    return proven_singular(origin, trigger="nonfinite-loss", forward_finite=False)


def a10_log():
    origin = op(
        "aten.log.default",
        tensor(dtype="float32", shape=(16,), min=0.0, n_zero=1),
        out=tensor("out[0]", dtype="float32", shape=(16,), n_neginf=1),
        text="return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()",
    )
    product = op("aten.mul.Tensor", out=tensor(n_nan=1), text=origin.source.text)
    facts = {"clamp_bound": 0.99999999, "clamp_bound_rounded": 1.0, "clamp_dtype": "float32", "clamp_eps": 1.2e-7}
    return proven_singular(
        origin, trigger="nonfinite-loss", forward_finite=False, multiplier_zero=product, nan_maker=product, facts=facts
    )


def a11_no_labels():
    origin = op(
        "aten.nll_loss_forward.default",
        tensor(dtype="float32", shape=(5, 7)),
        tensor("target", dtype="int64", shape=(5,), min=-100.0, max=-100.0),
        out=tensor("out[0]", dtype="float32", shape=(), n_nan=1),
        phase="loss",
        scalars={"reduction": 1, "ignore_index": -100},
    )
    return proven_singular(origin, trigger="nonfinite-loss", forward_finite=False)


def b1_where():
    origin = op(
        "aten.sqrt.default",
        tensor(dtype="float32", min=-1.0),
        out=tensor("out[0]", dtype="float32", n_nan=1),
        text="return torch.where(x > 0, torch.sqrt(x), x)",
    )
    return proven_singular(origin, killed_in_forward=True)


def b2_root():
    origin = op(
        "aten.sqrt.default",
        tensor(dtype="float32"),
        tensor("other", dtype="float32", n_zero=1),
        out=tensor("grad_in[0]", dtype="float32", n_posinf=1),
        phase="backward",
        node="SqrtBackward0",
        scalars={"backward_op": "aten.div.Tensor"},
    )
    return proven_singular(origin, upstream_grad_zero=False)


def b4_mask_after_loss():
    leaf = tensor("target", dtype="float32", shape=(12, 3), n_nan=1)
    return Evidence(
        leaf=leaf,
        leaf_kind="batch",
        killed_in_forward=True,
        replayed=True,
        reproduced=True,
        chips=("NaN ×1",),
        indices=((7, 1),),
        multiplier_zero=op("aten.pow.Tensor_Scalar", out=tensor(n_nan=1), phase="backward"),
    )


def b6_eigh():
    origin = op(
        "aten.linalg_eigh.default",
        tensor(dtype="float64"),
        tensor("other", dtype="float64", n_zero=2),
        out=tensor("grad_in[0]", dtype="float64", n_nan=2),
        phase="backward",
        node="LinalgEighBackward0",
        scalars={"backward_op": "aten.div.Tensor"},
    )
    return proven_singular(origin)


def e1_eps():
    return Evidence(
        trigger="nonfinite-param",
        bad_params=("lift.weight",),
        optimizer={
            "class": "Adam",
            "eps": 1e-8,
            "eps_in_dtype": 0.0,
            "state_dtype": "float16",
            "n_bad": 3.0,
            "n_v_zero": 3.0,
        },
    )


def f7_mask():
    return Evidence(
        trigger="nonfinite-loss",
        leaf=tensor("target", dtype="float32", n_posinf=1),
        leaf_kind="batch",
        forward_finite=False,
        replayed=True,
        reproduced=True,
        multiplier_zero=op("aten.mul.Tensor", out=tensor(n_nan=1), phase="loss", text="(error * mask).sum()"),
    )


def root_of_parameter():
    gain = tensor(dtype="float32", shape=(16,), min=-0.25, origin="param gain")
    origin = op("aten.sqrt.default", gain, out=tensor("out[0]", dtype="float32", shape=(16,), n_nan=1))
    facts = {"n_outside": 1.0, "worst_outside": -0.25, "at_outside": "[5]", "is_all_outside": 1.0}
    return proven_singular(origin, trigger="nonfinite-loss", forward_finite=False, facts=facts)


def acos_beyond_one():
    cosine = tensor(dtype="float32", max=1.0000001, origin="aten.div.Tensor in angle")
    origin = op("aten.acos.default", cosine, out=tensor("out[0]", dtype="float32", n_nan=1))
    facts = {"n_outside": 1.0, "worst_outside": 1.0000001, "at_outside": "[3]", "is_all_outside": 1.0}
    return proven_singular(origin, trigger="nonfinite-loss", forward_finite=False, facts=facts)


def exponent_of_negative():
    origin = op(
        "aten.pow.Tensor_Tensor",
        tensor(dtype="float32", min=-2.0),
        out=tensor("out[0]", dtype="float32", n_nan=1),
        phase="backward",
        node="PowBackward1",
        scalars={"backward_op": "aten.log.default"},
    )
    facts = {"n_outside": 1.0, "worst_outside": -2.0, "at_outside": "[0]", "is_all_outside": 1.0}
    return proven_singular(origin, facts=facts)


def log_in_own_backward():
    origin = op(
        "aten.log.default",
        tensor(dtype="float32", shape=(16,), min=0.0, n_zero=1),
        out=tensor("out[0]", dtype="float32", shape=(16,), n_neginf=1),
        phase="backward",
        node="SharpenBackward",
        scalars={"backward_op": "aten.log.default"},
    )
    return proven_singular(origin)


BUGS = {
    "own-backward": (log_in_own_backward, "log-of-zero", "the gradient of sharpen of exactly 0"),
    "root": (root_of_parameter, "out-of-domain", "the square root of a negative number in parameter gain"),
    "acos": (acos_beyond_one, "out-of-domain", "acos of a number beyond ±1"),
    "exponent": (
        exponent_of_negative,
        "out-of-domain",
        "the gradient of the power needs the logarithm of a negative number",
    ),
    "A1": (a1_linear, "format-overflow", "linear overflowed float16"),
    "A3": (a3_key_sum, "accumulation-overflow", "the sum overflowed float16"),
    "A4": (a4_projection, "format-overflow", "the matrix product overflowed float16"),
    "A5": (a5_variance, "format-overflow", "the power overflowed float16"),
    "A8": (a8_masked_row, "fully-masked-softmax", "softmax over a fully masked row"),
    "A10": (a10_log, "log-of-zero", "the logarithm of exactly 0"),
    "A11": (a11_no_labels, "empty-reduction", "the negative log-likelihood has no valid label"),
    "B1": (b1_where, "masked-gradient-trap", "the square root, masked by where in forward only"),
    "B2": (b2_root, "sqrt-gradient-at-zero", "the gradient of the square root at exactly 0"),
    "B4": (b4_mask_after_loss, "masked-gradient-trap", "a bad value in batch[target] was masked in forward only"),
    "B6": (b6_eigh, "division-by-zero", "the gradient of eigh with repeated eigenvalues"),
    "F7": (f7_mask, "zero-times-inf", "masking by multiplication: 0 × inf is NaN"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_names_the_cause_of_each_bug_and_proves_it(bug):
    make, cause, title = BUGS[bug]

    verdict = judge(make())

    assert (verdict.cause, verdict.confidence, verdict.title) == (cause, "proven", title)


def test_out_of_domain_says_the_number_furthest_outside_and_its_index():
    root, acos = judge(root_of_parameter()), judge(acos_beyond_one())

    line = "parameter gain is a negative number at 1 of 16 elements, at worst -0.25 at [5]"
    assert (root.limit, root.actual, line in root.why) == (0.0, -0.25, True)
    assert (acos.limit, acos.actual) == (1.0, 1.0000001)
    assert (
        "the operand (aten.div.Tensor in angle) is a number beyond ±1 at 1 of 4 elements, at worst 1.0000001 at [3]"
        in acos.why
    )


def test_an_operator_that_python_code_runs_in_backward_is_judged_as_itself():
    def in_backward(evidence):
        origin = evidence.origin
        own = replace(origin, phase="backward", node="SquaredBackward", scalars={"backward_op": origin.op})
        return judge(replace(evidence, origin=own, multiplier_zero=None)).cause

    assert in_backward(a10_log()) == "log-of-zero"
    assert in_backward(root_of_parameter()) == "out-of-domain"


def test_out_of_domain_is_proven_only_where_exactly_these_elements_are_bad():
    others = replace(root_of_parameter(), facts={**root_of_parameter().facts, "is_all_outside": 0.0})
    not_captured = replace(root_of_parameter(), facts={}, float64=Rerun(why_not="it was not kept"))

    assert (judge(others).cause, judge(others).confidence) == ("out-of-domain", "likely")
    assert (judge(not_captured).cause, judge(not_captured).confidence) == ("out-of-domain", "likely")
    assert "parameter gain goes down to -0.25" in judge(not_captured).why


def test_eps_is_likely_without_recomputing_the_update_and_proven_with():
    assert (judge(e1_eps()).cause, judge(e1_eps()).confidence) == ("optimizer-eps-underflow", "likely")

    recomputed = replace(e1_eps(), float64=Rerun(ran=True, finite=True))

    assert judge(recomputed).confidence == "proven"
    assert judge(recomputed).title == "Adam divided by zero: eps 1e-8 is 0 in float16"


def test_overflow_says_the_float64_value_against_the_limit():
    verdict = judge(a1_linear())

    assert (verdict.limit, verdict.actual) == (65504.0, 66246.0)
    assert "inputs were finite (self |max| 1, mat1 |max| 8, mat2 |max| 8.1)" in verdict.why
    assert "in float64 the largest value is 66246 > 65504, the largest float16" in verdict.why
    assert "+inf ×12 of 128 values, first at [2, 0]" in verdict.why
    assert "executed again on the same device it gives the same bits" in verdict.why


def test_accumulation_says_from_which_length_on():
    verdict = judge(a3_key_sum())

    assert "8,192 terms of mean 10 are added; it overflows from about 6,550 terms on" in verdict.why
    assert any(line.startswith("killed by the division (model.py:12)") for line in verdict.why)


def test_clamp_that_does_nothing_is_named():
    assert any("its bound 0.99999999 is 1 in float32" in line for line in judge(a10_log()).why)


def test_history_of_growth_is_told_only_when_it_is_real():
    grown = replace(a1_linear(), history=tuple((s, 2.0 ** ((s - 180) / 26)) for s in range(180, 316, 8)))
    flat = replace(a1_linear(), history=tuple((s, 1.0 + s % 2) for s in range(180, 316, 8)))

    assert "|max| had doubled every 26 steps since step 180" in judge(grown).why
    assert not any("doubled" in line for line in judge(flat).why)


def test_without_re_execution_nothing_is_proven():
    for make, cause, _ in BUGS.values():
        evidence = make()
        if evidence.leaf is not None:
            continue
        bare = replace(evidence, float64=Rerun(), again=Rerun(), replayed=False, reproduced=False)

        assert judge(bare).confidence != "proven", cause


NEAR_MISSES = {
    "a root that is not finite for another reason": (
        lambda: replace(root_of_parameter(), facts={}, origin=replace(
            root_of_parameter().origin, inputs=(tensor(dtype="float32", min=0.0),))),
        "unknown",
    ),
    "the negative number was masked away": (
        lambda: replace(b1_where(), facts=root_of_parameter().facts),
        "masked-gradient-trap",
    ),
    "log of 0 beside log of a negative number": (
        lambda: replace(a10_log(), multiplier_zero=None, facts=root_of_parameter().facts, origin=replace(
            a10_log().origin, inputs=(tensor(dtype="float32", shape=(16,), min=-0.25, n_zero=3),))),
        "out-of-domain",
    ),
    "the float64 value fits: 65503 <= 65504": (
        lambda: replace(a1_linear(), origin=replace(a1_linear().origin, op="aten.gelu.default"),
                        float64=Rerun(ran=True, finite=True, absmax=65503.0)),
        "unknown",
    ),
    "partial sums, not the product": (
        lambda: replace(a1_linear(), float64=Rerun(ran=True, finite=True, absmax=65503.0)),
        "accumulation-overflow",
    ),
    "finite the second time: the hardware": (
        lambda: replace(a1_linear(), again=Rerun(ran=True, finite=True, equal_bits=False, n_runs=59)),
        "hardware-fault",
    ),
    "finite the second time, and not done more often": (
        lambda: replace(a1_linear(), again=Rerun(ran=True, finite=True, equal_bits=False, n_runs=4)),
        "format-overflow",
    ),
    "finite most of the time": (
        lambda: replace(a1_linear(), again=Rerun(ran=True, finite=True, equal_bits=False, n_runs=5, repeats=False)),
        "format-overflow",
    ),
    "an op that may add in any order is not judged": (
        lambda: replace(a1_linear(), origin=replace(a1_linear().origin, op="aten.index_add.default"),
                        again=Rerun(ran=True, finite=True, equal_bits=False, n_runs=59)),
        "accumulation-overflow",
    ),
    "finite on the CPU, and float64 fits: the kernel": (
        lambda: replace(a1_linear(), float64=Rerun(ran=True, finite=True, absmax=3e4),
                        cpu=Rerun(ran=True, finite=True, absmax=3e4)),
        "kernel-bug",
    ),
    "finite on the CPU, but float64 does not fit": (
        lambda: replace(a1_linear(), cpu=Rerun(ran=True, finite=True, absmax=65504.0)),
        "format-overflow",
    ),
    "one softmax input is +inf": (
        lambda: replace(a8_masked_row(), origin=replace(
            a8_masked_row().origin, inputs=(tensor(shape=(4, 4), n_neginf=7, n_posinf=1),))),
        "unknown",
    ),
    "one valid label": (
        lambda: replace(a11_no_labels(), facts={"n_valid_labels": 1.0}),
        "unknown",
    ),
    "a squared norm: the gradient that comes in is 0 without a mask": (
        lambda: replace(b2_root(), upstream_grad_zero=True),
        "sqrt-gradient-at-zero",
    ),
    "the same with where on the line": (
        lambda: replace(b2_root(), upstream_grad_zero=True, origin=replace(
            b2_root().origin, source=Source(file="m.py", line=1, text="torch.where(ok, x.sqrt(), 0)"))),
        "masked-gradient-trap",
    ),
    "a gradient that float64 holds": (
        lambda: replace(b2_root(), limit=FLOAT32_MAX, float64=Rerun(ran=True, finite=True, absmax=1e39)),
        "format-overflow",
    ),
    "the NaN in the batch reached the loss": (
        lambda: replace(b4_mask_after_loss(), killed_in_forward=False, forward_finite=False, multiplier_zero=None),
        "bad-input",
    ),
    "the infinity came from the model, not from the batch": (
        lambda: replace(f7_mask(), leaf_kind="param"),
        "bad-parameter",
    ),
    "eps survives the rounding": (
        lambda: replace(e1_eps(), optimizer={**e1_eps().optimizer, "eps": 1e-4, "eps_in_dtype": 1e-4}),
        "unknown",
    ),
    "v is not 0": (
        lambda: replace(e1_eps(), optimizer={**e1_eps().optimizer, "n_v_zero": 0.0}),
        "unknown",
    ),
    "log of values above 0 that is not finite in float64": (
        lambda: replace(a10_log(), multiplier_zero=None, origin=replace(
            a10_log().origin, inputs=(tensor(dtype="float32", min=1e-30),))),
        "unknown",
    ),
}  # fmt: skip


@pytest.mark.parametrize("miss", NEAR_MISSES)
def test_near_miss_gets_another_name(miss):
    make, cause = NEAR_MISSES[miss]

    assert judge(make()).cause == cause


def test_loss_scale_is_blamed_only_when_the_gradient_fits_without_it():
    gradient = op(
        "aten.mm.default",
        tensor(),
        tensor("mat2"),
        out=tensor("grad_in[0]", n_posinf=3),
        phase="backward",
        node="MmBackward0",
    )

    scaled = proven_overflow(gradient, 2.0**20, loss_scale=2.0**16)
    too_large = proven_overflow(gradient, 2.0**40, loss_scale=2.0**16)

    assert judge(scaled).cause == "loss-scale-overflow"
    assert judge(scaled).title == "the loss scale 65536 made the gradient of the matrix product overflow float16"
    assert judge(too_large).cause == "format-overflow"


def test_wide_formats_overflow_by_explosion_only_when_the_operands_are_enormous():
    def product(absmax):
        a, b = tensor(dtype="float32", absmax=absmax), tensor("other", dtype="float32", absmax=absmax)
        origin = op("aten.mul.Tensor", a, b, out=tensor("out[0]", dtype="float32", n_posinf=1))
        return proven_overflow(origin, 1e39, limit=FLOAT32_MAX)

    backward = replace(product(1e20), origin=replace(product(1e20).origin, phase="backward", node="MulBackward0"))

    assert judge(product(3e19)).cause == "exploding-activation"
    assert judge(product(1e11)).cause == "format-overflow"
    assert judge(backward).cause == "exploding-gradient"


def test_division_needs_an_exact_zero_below_the_line():
    def division(n_zero):
        below = tensor("other", dtype="float32", shape=(8, 1), n_zero=n_zero)
        origin = op("aten.div.Tensor", tensor(dtype="float32"), below, out=tensor("out[0]", dtype="float32", n_nan=1))
        return proven_singular(origin, trigger="nonfinite-loss", forward_finite=False)

    assert judge(division(1)).cause == "division-by-zero"
    assert "other is exactly 0 at 1 of 8 elements" in judge(division(1)).why
    assert judge(division(0)).cause == "unknown"


def test_infinite_constants_cancel_or_meet_a_zero():
    mask = tensor(n_neginf=2, literal_inf=True)
    out = tensor("out[0]", n_nan=1)

    cancelled = proven_singular(op("aten.sub.Tensor", mask, tensor("other", n_neginf=1), out=out))
    opposite = proven_singular(op("aten.sub.Tensor", mask, tensor("other", n_posinf=1), out=out))
    zeroed = proven_singular(op("aten.mul.Tensor", mask, tensor("other", n_zero=1), out=out))

    assert judge(cancelled).cause == "inf-minus-inf"
    assert judge(opposite).cause == "unknown"
    assert judge(zeroed).cause == "zero-times-inf"


def test_pow_gradient_and_negative_power_of_zero_are_told_apart():
    out = tensor("out[0]", dtype="float32", n_posinf=1)
    backward = op("aten.pow.Tensor_Scalar", tensor(n_zero=1), out=out, phase="backward", node="PowBackward0")
    forward = op("aten.pow.Tensor_Scalar", tensor(n_zero=1), out=out, scalars={"exponent": -0.5})

    assert judge(proven_singular(backward, upstream_grad_zero=False)).cause == "pow-gradient"
    assert judge(proven_singular(forward)).cause == "division-by-zero"


def test_a_table_lookup_outside_its_table():
    def lookup(largest):
        index = tensor("indices", dtype="int64", min=0.0, max=largest)
        origin = op("aten.embedding.default", tensor("weight", shape=(8, 4)), index, out=tensor("out[0]", n_nan=1))
        return Evidence(origin=origin)

    assert (judge(lookup(8.0)).cause, judge(lookup(8.0)).confidence) == ("index-out-of-range", "likely")
    assert judge(lookup(7.0)).cause == "unknown"


def test_a_buffer_is_named_as_a_buffer():
    leaf = tensor("norm.running_var", dtype="float32", shape=(8,), n_posinf=1)

    verdict = judge(Evidence(leaf=leaf, leaf_kind="buffer", chips=("+inf ×1",), replayed=True, reproduced=True))

    assert (verdict.cause, verdict.confidence) == ("bad-parameter", "proven")
    assert verdict.title == "buffer norm.running_var held +inf before the step"


def test_no_evidence_is_unknown_and_says_why():
    verdict = judge(Evidence(trigger="nonfinite-loss", why_not="the inputs were mutated"))

    assert (verdict.cause, verdict.confidence, verdict.title) == ("unknown", "possible", "the loss is not finite")
    assert verdict.why == ("the inputs were mutated",)


def test_gradients_that_are_only_bad_in_their_sum():
    verdict = judge(Evidence(replayed=True, why_not="only the sum", facts={"accumulated": 4.0}))

    assert (verdict.cause, verdict.confidence) == ("accumulation-overflow", "likely")


def test_dead_gradient_without_an_overflow_is_never_proven():
    dead = Evidence(trigger="dead-grad", bad_params=("a.weight",), replayed=True, reproduced=True, healthy_steps=5)

    assert (judge(dead).cause, judge(dead).confidence) == ("dead-gradient", "likely")
