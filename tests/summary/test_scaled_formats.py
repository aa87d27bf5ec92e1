"""Bounds of what becomes zero, against casts that are done element by element, bit for bit."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.formats import FORMATS
from hypocenter.summary.reducers.numpy import summarize
from hypocenter.summary.scaled_formats import E2M1, SCALED, zeros

E4M3, E5M2 = FORMATS["float8_e4m3fn"], FORMATS["float8_e5m2"]


def cast(x, form):
    """To nearest, ties to even, saturating."""
    x = np.asarray(x, np.float64)
    exponent = np.maximum(np.frexp(np.where(x == 0, 1.0, x))[1] - 1, form.smallest_exponent)
    step = 2.0 ** (exponent - form.fraction_bits)
    return np.clip(np.round(x / step) * step, -form.max, form.max)


def mx(blocks, *, up):
    """OCP MX 1.0, 6.3, and the rule that rounds the scale up."""
    amax = np.abs(blocks).max(-1, keepdims=True)
    exact = np.log2(np.where(amax == 0, 1.0, amax / (448.0 if up == "rceil" else 256.0)))
    scale = 2.0 ** (np.ceil(exact) if up else np.floor(exact))
    return cast(blocks / scale, E4M3) * scale


def nvfp4(blocks, *, least):
    """Two scales; `least`: the smallest that a block's may be."""
    whole = np.abs(blocks).max() / (6.0 * 448.0)
    scale = np.maximum(cast(np.abs(blocks).max(-1, keepdims=True) / 6.0 / whole, E4M3), least) * whole
    return cast(np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0), E2M1) * scale


def fp8(blocks, form, *, power):
    scale = np.abs(blocks).max(-1, keepdims=True) / form.max
    scale = np.where(scale == 0, 1.0, scale)
    scale = 2.0 ** np.ceil(np.log2(scale)) if power else scale
    return cast(blocks / scale, form) * scale


CASTS = {
    "mxfp8 floor": ("mxfp8", lambda x: mx(x, up="")),
    "mxfp8 ceil": ("mxfp8", lambda x: mx(x, up="ceil")),
    "mxfp8 rceil": ("mxfp8", lambda x: mx(x, up="rceil")),
    "nvfp4": ("nvfp4", lambda x: nvfp4(x, least=0.0)),
    "nvfp4 smallest subnormal": ("nvfp4", lambda x: nvfp4(x, least=2.0**-9)),
    "nvfp4 as torchao": ("nvfp4", lambda x: nvfp4(x, least=2.0**-6)),
    "fp8-block": ("fp8-block", lambda x: fp8(x, E4M3, power=False)),
    "fp8-block as TransformerEngine": ("fp8-block", lambda x: fp8(x, E4M3, power=True)),
}


@st.composite
def tensors(draw):
    """Blocks in rows, of values that spread over up to 60 octaves, with zeros and outliers."""
    seed, spread = draw(st.integers(0, 1 << 30)), draw(st.sampled_from([0.5, 3.0, 12.0, 30.0]))
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(512) * 2.0 ** rng.uniform(-spread, spread, 512)
    x[rng.random(512) < draw(st.sampled_from([0.0, 0.3]))] = 0.0
    if draw(st.booleans()):
        x = np.sort(x)
    if draw(st.booleans()):
        x[:: draw(st.sampled_from([16, 32, 128]))] *= 2.0 ** draw(st.integers(0, 24))
    return np.round(np.frexp(x)[0] * 2**11) * 2.0 ** (np.frexp(x)[1] - 11)  # few bits: ties happen


@pytest.mark.parametrize("name", CASTS)
@given(x=tensors())
@settings(max_examples=60, deadline=None)
def test_what_becomes_zero_is_within_the_bounds(name, x):
    kind, to = CASTS[name]
    form = SCALED[kind]
    blocks = x.reshape(-1, form.block)
    n = int(((blocks != 0) & (to(blocks) == 0)).sum())

    found = zeros(summarize(x), form, "forward")
    assert found.least <= n <= found.most
    assert found.least <= found.expected <= found.most


@pytest.mark.parametrize("phase", ["forward", "backward"])
@given(x=tensors())
@settings(max_examples=60, deadline=None)
def test_one_scale_for_a_tensor(phase, x):
    element = E5M2 if phase == "backward" else E4M3
    n = int(((x != 0) & (fp8(x.reshape(1, -1), element, power=False)[0] == 0)).sum())

    found = zeros(summarize(x), SCALED["fp8-tensor"], phase)
    assert found.least <= n <= found.most


@pytest.mark.parametrize("name", ["mxfp8 floor", "nvfp4 as torchao", "fp8-block"])
def test_the_estimate_is_that_of_values_in_no_order(name):
    kind, to = CASTS[name]
    form, rng = SCALED[kind], np.random.default_rng(0)
    x = rng.standard_normal(1 << 16) * 2.0 ** rng.uniform(-8, 8, 1 << 16)
    blocks = x.reshape(-1, form.block)

    found = zeros(summarize(x), form, "forward")
    assert found.expected == pytest.approx(int((to(blocks) == 0).sum()), rel=0.1)


def test_worst_and_best_arrangement_are_far_apart():
    """1,024 large and 15,360 small values in nvfp4: one large in each block takes all others with it, sorted none."""
    large, small = np.full(1024, 1024.0), np.full(15 * 1024, 1.0)
    apart = np.concatenate([large, small]).reshape(-1, 16)
    mixed = np.concatenate([large[:, None], small.reshape(1024, 15)], 1)

    found = zeros(summarize(mixed), SCALED["nvfp4"], "forward")
    assert (found.least, found.most) == (0, 15 * 1024)
    assert int((nvfp4(mixed, least=0.0) == 0).sum()) == found.most
    assert int((nvfp4(apart, least=0.0) == 0).sum()) == found.least


def test_weights_have_larger_blocks():
    x = np.concatenate([[2.0**24], np.ones(1000)])

    assert zeros(summarize(x), SCALED["fp8-block"], "forward").most == 127
    assert zeros(summarize(x), SCALED["fp8-block"], "param").most == 1000


def test_a_sample_without_the_largest_still_has_it():
    found = zeros(replace(summarize(np.ones(512)), n=4096, absmax=1024.0), SCALED["nvfp4"], "forward")

    assert found.most == 15


def test_nothing_and_zeros():
    for x in (np.zeros(0), np.zeros(64)):
        assert zeros(summarize(x), SCALED["nvfp4"], "forward").most == 0


@pytest.mark.night
@pytest.mark.skipif(not os.environ.get("TRITON_PYTHON"), reason="TRITON_PYTHON names no Python with torchao")
def test_what_is_asked_of_torchao_is_asked_where_it_is_installed():
    own = [os.environ["TRITON_PYTHON"], "-m", "pytest", __file__, "-q", "-p", "no:cacheprovider", "-k", "torchao_does"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    env["PYTHONPATH"] = str(Path(__file__).parents[2] / "src")  # where .venv is seen, what it points to is not
    told = subprocess.run(own, env=env, capture_output=True, text=True, timeout=600, check=False)

    assert "3 passed" in told.stdout, f"exit code {told.returncode}: {told.stdout[-2000:]}{told.stderr[-4000:]}"


@pytest.mark.parametrize("spread", [0.5, 6.0, 14.0])
def test_torchao_does_the_same(spread):
    """Its own emulation on the CPU, every element."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchao")
    from torchao.prototype.mx_formats.config import ScaleCalculationMode as Mode
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

    rng = np.random.default_rng(1)
    x = (rng.standard_normal(4096) * 2.0 ** rng.uniform(-spread, spread, 4096)).astype(np.float32).astype(np.float64)
    given_ = torch.tensor(x, dtype=torch.float32).reshape(32, 128)
    for mode, up in ((Mode.FLOOR, ""), (Mode.RCEIL, "rceil")):
        theirs = MXTensor.to_mx(given_, torch.float8_e4m3fn, 32, mode).dequantize(torch.float32)
        assert theirs.reshape(-1).tolist() == mx(x.reshape(-1, 32), up=up).reshape(-1).tolist()
    scale = per_tensor_amax_to_scale(given_.abs().max())
    theirs = NVFP4Tensor.to_nvfp4(given_, per_tensor_scale=scale).dequantize(torch.float32).numpy().reshape(-1)
    ours = nvfp4(x.reshape(-1, 16), least=2.0**-6).reshape(-1)
    assert np.isclose(theirs, ours, rtol=1e-6, atol=0).mean() > 0.999  # scales in float32: a tie may fall otherwise
    assert ((theirs == 0) == (ours == 0)).mean() > 0.999
