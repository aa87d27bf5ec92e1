"""The remedies beside float32: what they do in a replay, when they apply, and what they say."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hypocenter.diagnose.evidence import Evidence, OpFacts, Rerun, TensorFacts
from hypocenter.nouns import Summary
from hypocenter.replay.remedies import bf16_island, clamp, fp32_island, lower_scale, prescale
from hypocenter.replay.remedies.kinds import REMEDIES as CATALOGUE

REMEDIES = CATALOGUE.in_order()
torch.set_num_threads(1)


class KeySum(nn.Module):
    """The seed case: a sum over the sequence, an einsum of it, and a division that brings it back."""

    def __init__(self):
        super().__init__()
        self.eps = 1e-6

    def forward(self, q, k):
        return (torch.einsum("nlhd,nhd->nlh", q, k.sum(dim=1)) + self.eps) / k.size(1)


def overflow(dtype="float16", op="aten.sum.dim_IntList", phase="forward", n_nan=0):
    out = TensorFacts(name="out[0]", dtype=dtype, summary=Summary(n=4, n_posinf=4 - n_nan, n_nan=n_nan))
    origin = OpFacts(
        index=1, op=op, phase=phase, site="attn", inputs=(TensorFacts(name="in[0]", dtype=dtype),), outputs=(out,)
    )
    return Evidence(origin=origin, float64=Rerun(ran=True, finite=True), loss_scale=65536.0)


def test_float32_is_preferred_and_clamping_comes_last():
    assert [kind.name for kind in REMEDIES] == ["fp32-island", "bf16-island", "prescale", "lower-scale", "clamp"]
    assert len({kind.order for kind in REMEDIES}) == len(REMEDIES)


@pytest.mark.parametrize("kind", REMEDIES, ids=lambda kind: kind.name)
def test_every_remedy_says_what_to_do_and_leaves_no_trace(kind):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).half()
    x = torch.ones(2, 4).half()
    before = model(x)

    with kind.around([model[0]]):
        model(x)

    assert torch.equal(model(x), before)
    assert all("forward" not in vars(m) and not m._forward_hooks for m in model.modules())
    assert kind.applies(None)
    said = kind.text(["encoder.0", ""])
    assert len(said) > 20
    assert ("encoder.0" in said and "the model" in said) or not kind.takes_modules or kind.name == "bf16-island"


@pytest.mark.parametrize(
    ("evidence", "names"),
    [
        (overflow(), "fp32-island bf16-island prescale lower-scale clamp"),
        (overflow("bfloat16"), "fp32-island prescale lower-scale"),
        (overflow("float32"), "lower-scale"),
        (overflow(op="aten.exp.default"), "fp32-island bf16-island lower-scale clamp"),
        (overflow(n_nan=4), "fp32-island bf16-island prescale lower-scale"),
        (overflow(phase="backward"), "fp32-island bf16-island prescale lower-scale"),
        (replace(overflow(), forward_finite=False), "fp32-island bf16-island prescale clamp"),
        (replace(overflow(), loss_scale=None), "fp32-island bf16-island prescale clamp"),
        (replace(overflow(), float64=Rerun(ran=True, finite=False)), "lower-scale clamp"),
    ],
)
def test_only_what_can_help_is_tried(evidence, names):
    assert [kind.name for kind in REMEDIES if kind.applies(evidence)] == names.split()


def test_bfloat16_has_the_range():
    model, x = KeySum().half(), torch.full((1, 8192, 1, 2), 10.0).half()

    with bf16_island.KIND.around([model]):
        alone = model(x, x)
        with torch.autocast("cpu", torch.float16):
            out = model(x, x)

    assert alone.dtype == torch.float16
    assert out.dtype == torch.bfloat16
    assert torch.isfinite(alone).all()
    assert torch.equal(alone, out.half())


@settings(max_examples=30, deadline=None)
@given(length=st.integers(2, 4096), log2=st.integers(0, 9), seed=st.integers(0, 99))
def test_a_prescaled_sum_is_the_exact_one_but_for_float16s_rounding(length, log2, seed):
    torch.manual_seed(seed)
    model = KeySum()
    k = (torch.rand(1, length, 1, 2) * 2.0**log2).half()
    q = torch.ones(1, 1, 1, 2).half()
    exact = model(q.double(), k.double())

    with prescale.around([model]) as mode:
        out = model(q, k)

    assert torch.isfinite(out).all()
    assert torch.allclose(out.double(), exact, rtol=4e-3)
    assert all(divisor == 2.0 ** round(math.log2(divisor)) for divisor in mode.divisors.values())


def test_prescaling_says_what_divisor_it_needed_and_keeps_gradients():
    model = KeySum()
    k = torch.full((1, 8192, 1, 2), 10.0).half().requires_grad_()
    q = torch.ones(1, 1, 1, 2).half()

    with prescale.around([model]) as mode:
        out = model(q, k)
    out.sum().backward()

    assert mode.divisors["sum"] == 2.0
    assert float(out.detach()) == pytest.approx(20, rel=1e-3)
    assert torch.allclose(k.grad, torch.full_like(k, 1 / 8192), rtol=1e-3)


def test_what_is_finite_is_not_prescaled():
    model, x = KeySum().half(), torch.ones(1, 4, 1, 2).half()

    with prescale.around([model]) as mode:
        out = model(x, x)

    assert mode.divisors == {}
    assert out.dtype == torch.float16
    assert torch.equal(out, model(x, x))


def test_a_matrix_product_under_autocast_is_prescaled():
    class Projection(nn.Module):
        def forward(self, intrinsic, extrinsic):
            return intrinsic @ extrinsic

    model = nn.Sequential()
    model.add_module("inner", Projection())
    intrinsic, extrinsic = torch.full((3, 3), 1266.0), torch.full((3, 4), 1000.0)

    with prescale.around([model]), prescale.around([model.inner]), torch.autocast("cpu", torch.float16):
        out = model.inner(intrinsic, extrinsic)

    assert torch.allclose(out, intrinsic @ extrinsic, rtol=2e-3)


def test_scales_are_halved_down_to_one():
    assert list(lower_scale.seed_scales(65536.0)) == [2.0**-n for n in range(1, 17)]
    assert list(lower_scale.seed_scales(3.0)) == [0.5, 0.25]
    assert len(lower_scale.seed_scales(2.0**127)) == lower_scale.MAX_HALVINGS


def test_clamping_makes_infinities_finite_and_their_gradients_zero():
    linear = nn.Linear(2, 2, bias=False).half()
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[300.0, 300.0], [1.0, 1.0]]))
    model = nn.Sequential(linear, nn.Identity())
    x = torch.full((1, 2), 300.0).half().requires_grad_()

    with clamp.around([model]):
        out = model(x)
    out.float().sum().backward()

    assert out.tolist() == [[64512.0, 600.0]]  # 64504 rounded to a multiple of 32
    assert linear.weight.grad.tolist() == [[0.0, 0.0], [300.0, 300.0]]


def test_advice_names_the_model_itself():
    assert "the model" in fp32_island.text([""])
