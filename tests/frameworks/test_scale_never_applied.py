"""Megatron-Core without `grad_scale_func`: gradients are divided by a scale that no loss was multiplied by."""

import pytest
from installed import skip_without

skip_without("megatron.core")
pytestmark = pytest.mark.night


def test_a_missing_grad_scale_func_is_named(launch):
    seen = launch("megatron_job.py", "--bare", "--static", "1024", n_ranks=1)

    (found,) = [f for f in seen.diagnosis.findings if f.severity == "error"]
    assert (found.code, found.step, found.limit) == ("HC213", 0, 1024.0)
