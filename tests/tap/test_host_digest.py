import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypocenter.batch_numbers import moments
from hypocenter.tap.digest import digests, to_host
from hypocenter.tap.host_digest import host_digest, host_values

DTYPES = [torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64]


@given(dtype=st.sampled_from(DTYPES), n=st.integers(1, 5000), seed=st.integers(0, 1000), skip=st.integers(0, 3))
def test_it_is_the_number_that_the_tensor_code_gives(dtype, n, seed, skip):
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randint(-100, 100, (n + skip,), generator=generator).to(dtype)[skip:]

    assert host_digest(tensor) == to_host(digests([tensor]))[0]


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(0), torch.zeros(2, dtype=torch.bfloat16), torch.zeros(4, 4).T[:, ::2], torch.zeros(1 << 17)],
)
def test_what_is_not_small_and_plain_is_left_to_the_tensor_code(tensor):
    assert host_digest(tensor) is None


@given(dtype=st.sampled_from(DTYPES), n=st.integers(1, 5000), seed=st.integers(0, 1000))
def test_moments_are_those_of_the_values(dtype, n, seed):
    tensor = torch.randint(0, 100, (n,), generator=torch.Generator().manual_seed(seed)).to(dtype)
    wide = tensor.double()

    assert moments(host_values(tensor)) == pytest.approx(
        (wide.min().item(), wide.max().item(), wide.mean().item(), wide.std(correction=0).item()), rel=1e-5, abs=1e-6
    )


@pytest.mark.parametrize("bad", [float("inf"), float("nan"), 3e38])
def test_moments_of_what_is_not_finite_raise_no_warning_of_numpys(bad):
    tensor = torch.tensor([1.0, bad, -bad])

    with warnings.catch_warnings(), np.errstate(all="raise"):  # a program may have set it so
        warnings.simplefilter("error")

        assert not math.isfinite(moments(host_values(tensor))[3])
