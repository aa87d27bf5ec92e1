"""Gradients of attention are judged by rows; of convolutions that are too large, samples and channels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.replay import effort
from hypocenter.replay.triage import expected
from hypocenter.replay.triage.expected import TooMuch
from hypocenter.replay.triage.ops import judge

torch.set_num_threads(1)
aten = torch.ops.aten
FORWARD = aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
FORMATS = st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64])


def attention(queries, keys, *, seed=0, dtype=torch.float32, is_causal=False, scale=1.0, mask=None, heads=4):
    """The arguments of the backward, and what it gives."""
    generator = torch.Generator().manual_seed(seed)
    sizes = (queries, keys, keys, queries)
    q, k, v, grad = ((torch.randn(2, heads, n, 16, generator=generator) * scale).to(dtype) for n in sizes)
    mask = None if mask is None else mask.to(dtype)
    out, lse = FORWARD(q, k, v, 0.0, is_causal, attn_mask=mask)
    args = (grad, q, k, v, out, lse, 0.0, is_causal)
    return args, {"attn_mask": mask}, BACKWARD(*args, attn_mask=mask)


@settings(max_examples=25, deadline=None)
@given(
    queries=st.integers(1, 60),
    keys=st.integers(1, 60),
    seed=st.integers(0, 999),
    dtype=FORMATS,
    is_causal=st.booleans(),
    scale=st.sampled_from([1e-4, 0.1, 1.0, 4.0, 30.0]),
)
def test_healthy_gradients_of_attention_pass(queries, keys, seed, dtype, is_causal, scale):
    args, kwargs, given = attention(queries, keys, seed=seed, dtype=dtype, is_causal=is_causal, scale=scale)

    assert judge(BACKWARD, args, kwargs, given) == []


def test_a_query_that_sees_no_key_is_no_fault():
    mask = torch.zeros(1, 1, 24, 24)
    mask[..., 5, :] = -torch.inf
    mask[..., 7:, :3] = -torch.inf

    args, kwargs, given = attention(24, 24, mask=mask)

    assert judge(BACKWARD, args, kwargs, given) == []


@pytest.mark.parametrize("result", [0, 1, 2])
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_wrong_element_of_attentions_gradients_is_found(result, is_causal):
    args, kwargs, given = attention(48, 48, is_causal=is_causal)
    given[result][1, 2, 17, 3] += 0.1

    (wrong,) = judge(BACKWARD, args, kwargs, given)

    assert (wrong.out, wrong.index, wrong.n_wrong) == (result, (1, 2, 17, 3), 1)


def test_a_kernel_that_forgets_the_sum_over_rows_is_found():
    (grad, q, k, v, out, *rest), kwargs, _ = attention(48, 48)
    without = BACKWARD(grad, q, k, v, torch.zeros_like(out), *rest, **kwargs)

    found = judge(BACKWARD, (grad, q, k, v, out, *rest), kwargs, without)

    assert [wrong.out for wrong in found] == [0, 1]


def test_of_large_gradients_of_attention_rows_that_are_not_finite_are_judged_first(monkeypatch):
    args, kwargs, given = attention(256, 256)
    monkeypatch.setattr(expected, "MOST_PRODUCTS", 1 << 20)
    assert judge(BACKWARD, args, kwargs, given) == []

    given[1][0, 3, 77, 5] = torch.nan
    (wrong,) = judge(BACKWARD, args, kwargs, given)

    assert (wrong.out, wrong.index, wrong.n_wrong) == (1, (0, 3, 77, 5), 1)
    assert wrong.n < given[1].numel() / 10


def convolution(*, dtype=torch.float32, groups=1, transposed=False):
    """The arguments of a convolution and of its backward."""
    generator = torch.Generator().manual_seed(3)
    x, w = (torch.randn(*s, generator=generator).to(dtype) for s in ((16, 8, 12, 12), (8, 8 // groups, 3, 3)))
    rest = ([1, 1], [1, 1], [1, 1], transposed, [0, 0], groups)
    forward = (x, w, None, *rest)
    grad = torch.randn(16, 8, 12, 12, generator=generator).to(dtype)
    return forward, (grad, x, w, [8], *rest, [True, True, True])


@pytest.fixture
def little_time(monkeypatch):
    """Time for some samples of these convolutions, not for all."""
    monkeypatch.setattr(effort, "pace", lambda device, dtype: 3e6)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_healthy_convolutions_that_are_too_large_pass(little_time, dtype, groups, transposed):
    forward, backward = convolution(dtype=dtype, groups=groups, transposed=transposed)
    out, gradients = aten.convolution.default(*forward), aten.convolution_backward.default(*backward)

    assert judge(aten.convolution.default, forward, {}, (out,), seconds=1.0) == []
    assert judge(aten.convolution_backward.default, backward, {}, gradients, seconds=2.0) == []


def test_of_a_large_convolution_a_bad_sample_is_found(little_time):
    forward, _ = convolution()
    out = aten.convolution.default(*forward)
    out[11, 3, 4, 5] = torch.inf

    (wrong,) = judge(aten.convolution.default, forward, {}, (out,), seconds=1.0)

    assert (wrong.index, wrong.n_wrong) == ((11, 3, 4, 5), 1)
    assert wrong.n < out.numel()


@pytest.mark.parametrize("index", [(11, 3, 4, 5), (6, 2, 1, 1), (6,)])
def test_of_a_convolutions_large_gradients_a_bad_sample_or_channel_is_found(little_time, index):
    _, backward = convolution()
    gradients = aten.convolution_backward.default(*backward)
    result = {11: 0}.get(index[0], 1 if len(index) > 1 else 2)
    gradients[result][index] = torch.nan

    (wrong,) = judge(aten.convolution_backward.default, backward, {}, gradients, seconds=2.0)

    assert (wrong.out, wrong.index, wrong.n_wrong) == (result, index, 1)


def test_a_fault_of_all_samples_of_a_large_convolution_is_found(little_time):
    forward, backward = convolution()
    out, gradients = aten.convolution.default(*forward) * 1.5, aten.convolution_backward.default(*backward)

    assert judge(aten.convolution.default, forward, {}, (out,), seconds=1.0)
    found = judge(aten.convolution_backward.default, backward, {}, [1.5 * t for t in gradients], seconds=2.0)
    assert [wrong.out for wrong in found] == [0, 1, 2]


def test_what_there_is_no_time_for_in_part_is_not_judged(little_time):
    _, backward = convolution()
    gradients = aten.convolution_backward.default(*backward)

    with pytest.raises(TooMuch):
        judge(aten.convolution_backward.default, backward, {}, gradients, seconds=1e-3)


@pytest.mark.parametrize("kind", ["attention", "convolution"])
def test_a_default_device_of_the_program_changes_nothing(little_time, kind):
    if kind == "attention":
        args, kwargs, given = attention(48, 48, is_causal=True)
        func = BACKWARD
    else:
        (_, args), kwargs, func = convolution(), {}, aten.convolution_backward.default
        given = func(*args)
    given[1][1, 1] = torch.nan

    with torch.device("meta"):
        found = judge(func, args, kwargs, given, seconds=2.0)

    assert [wrong.out for wrong in found or ()] == [1]
