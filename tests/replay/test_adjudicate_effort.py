"""The blamed operator done again: as a whole where that is cheap, else some rows, else not at all, and it is said."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from hypocenter.replay import adjudicate, effort
from hypocenter.replay.deadline import Deadline
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.tracer import OpTracer

torch.set_num_threads(1)
aten = torch.ops.aten


@pytest.fixture(autouse=True)
def slow_cpu(monkeypatch):
    """A CPU that does 1e7 FLOPs a second, so that small tensors are large."""
    monkeypatch.setattr(effort, "pace", lambda device, dtype: 1e7)


def node_of(func, *args, **kwargs):
    """The traced call of one operator."""
    with OpTracer(OpContext(lambda module: None), lambda t: ("batch", "")) as tracer:
        func(*args, **kwargs)
    return tracer.nodes[-1]


class Largest(TorchDispatchMode):
    """Counts the bytes of the largest tensor that is made."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, torch.Tensor):
                self.bytes = max(self.bytes, t.untyped_storage().nbytes())
        return out


def large_product(kind, bad):
    torch.manual_seed(0)
    a, b = torch.randn(4096, 64), torch.randn(64, 512)
    for row in bad:
        a[row] = 1e38
    b.abs_()
    if kind == "mm":
        return node_of(aten.mm.default, a, b)
    if kind == "addmm":
        return node_of(aten.addmm.default, torch.randn(512), a, b, beta=0.5, alpha=2.0)
    return node_of(aten.bmm.default, a.view(8, 512, 64), b.expand(8, 64, 512))


@pytest.mark.parametrize("kind", ["mm", "addmm", "bmm"])
def test_of_a_large_product_the_rows_with_bad_elements_are_done_again(kind):
    node = large_product(kind, bad=(7, 1500, 4095))

    with FlopCounterMode(display=False) as counted:
        float64 = adjudicate.rerun_float64(node, Deadline(60.0))
        cpu = adjudicate.rerun_on_cpu(node, Deadline(60.0))

    assert float64.ran
    assert float64.finite
    assert float64.absmax > torch.finfo(torch.float32).max
    assert float64.part == "67 of 4,096 rows"
    assert cpu.ran
    assert not cpu.finite
    assert cpu.equal_bits or kind != "mm"
    whole = 2 * 4096 * 64 * 512
    assert counted.get_total_flops() <= 2 * 67 * 2 * 64 * 512 < whole / 10


def test_of_more_bad_rows_than_there_is_time_for_some_are_done_again():
    node = large_product("mm", bad=range(4096))

    found = adjudicate.rerun_float64(node, Deadline(4.0))  # a second for this operator: 1e7 FLOPs

    assert found.part == "152 of 4,096 rows"
    assert found.finite
    assert found.n_nonfinite == 0


def test_what_is_too_large_and_has_no_rows_is_not_done_again_and_it_is_said():
    node = node_of(aten.cumsum.default, torch.full((1024, 1024), 3e38), 0)

    found = adjudicate.rerun_float64(node, Deadline(12.0))
    cpu = adjudicate.rerun_on_cpu(node, Deadline(12.0))

    assert not found.ran
    assert found.why_not == "not done again in float64 on the CPU: 3.4e7 FLOPs, more than 3 s allow"
    assert cpu.why_not == "not done again on the CPU: 3.4e7 FLOPs, more than 3 s allow"


def test_of_a_large_convolution_single_samples_are_done_again():
    x, w = torch.randn(64, 8, 32, 32), torch.randn(8, 8, 3, 3)
    x[5] = 3e38
    node = node_of(aten.convolution.default, x, w.abs(), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)

    found = adjudicate.rerun_float64(node, Deadline(8.0))

    assert found.finite
    assert found.part == "16 of 64 rows"


def test_memory_that_is_not_there_is_not_asked_for(monkeypatch):
    monkeypatch.setattr(effort, "free_bytes", lambda device: 1 << 20)
    node = node_of(aten.exp.default, torch.full((512, 512), 1e3))

    found = adjudicate.rerun_float64(node, Deadline(60.0))

    assert found.why_not == "not done again in float64 on the CPU: 4.2e6 bytes, more than a quarter of the free memory"


def test_nothing_is_done_again_when_the_time_is_over():
    node = node_of(aten.exp.default, torch.full((4,), 1e3))

    for again in (adjudicate.rerun_float64, adjudicate.rerun_same, adjudicate.rerun_on_cpu):
        assert again(node, Deadline(0.0)).why_not == "the time for this step was over"


def attended(n_rows, *, is_causal=False, n_key_heads=2, dtype=torch.float32):
    torch.manual_seed(1)
    q = torch.randn(2, 4, n_rows, 16, dtype=dtype)
    k, v = (torch.randn(2, n_key_heads, n_rows, 16, dtype=dtype) for _ in range(2))
    return q, k, v, is_causal


def test_attention_is_done_again_by_blocks_of_rows(monkeypatch):
    q, k, v, _ = attended(1024, n_key_heads=4)
    v[1, 2, 900] = 3e38
    k[1, 2, 900] = 0.0
    q[1, 2, :5] = 0.0
    v[1, 2, 901] = 3e38
    node = node_of(aten._scaled_dot_product_flash_attention_for_cpu.default, q, k, v * 10)
    monkeypatch.setattr("hypocenter.replay.attention.BLOCK_BYTES", 1 << 18)
    assert not all(bool(t.isfinite().all()) for t in node.outputs)

    with Largest() as largest:
        found = adjudicate.rerun_float64(node, Deadline(60.0))

    assert found.ran
    assert found.part.endswith(" of 8,192 rows")
    assert largest.bytes <= 1 << 20 < 8 * 8 * 1024 * 1024


@pytest.mark.parametrize(("is_causal", "mask"), [(False, "none"), (True, "none"), (False, "bool"), (False, "bias")])
def test_rows_of_attention_are_those_of_the_whole(is_causal, mask):
    q, k, v, _ = attended(48, n_key_heads=4)
    masks = {"none": None, "bool": torch.rand(2, 1, 48, 48) > 0.3, "bias": torch.randn(4, 48, 48)}
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *(t.double() for t in (q, k, v)), attn_mask=masks[mask] if mask != "bias" else masks[mask].double(),
        is_causal=is_causal, scale=0.3,
    )  # fmt: skip
    call = effort.Attention.of(
        aten._scaled_dot_product_flash_attention_for_cpu.default, (q, k, v, 0.0, is_causal),
        {"attn_mask": masks[mask], "scale": 0.3},
    )  # fmt: skip
    rows = torch.tensor([0, 5, 47, 48, 200, 383])

    found = call.rows(rows, torch.float64, torch.device("cpu"))

    torch.testing.assert_close(found, wanted.reshape(-1, 16)[rows], rtol=1e-12, atol=1e-12)


def test_heads_of_queries_share_heads_of_keys():
    q, k, v, _ = attended(32)
    wanted = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), enable_gqa=True)

    call = effort.Attention.of(aten._scaled_dot_product_flash_attention.default, (q, k, v), {})

    torch.testing.assert_close(
        call.rows(torch.arange(256), torch.float64, torch.device("cpu")), wanted.reshape(-1, 16), rtol=1e-12, atol=1e-12
    )


def test_a_kernel_of_another_device_is_adjudicated_all_the_same():
    """No float64 kernel of CUDA's flash attention exists: its rows are computed by its definition."""
    q, k, v, _ = attended(64, dtype=torch.float16)
    k *= 0
    v[:] = 65000.0
    node = node_of(aten._scaled_dot_product_flash_attention_for_cpu.default, q, k, v)
    node.func = aten._scaled_dot_product_flash_attention.default
    node.args, node.kwargs = (q, k, v), {}
    node.outputs, node.positions = (torch.full_like(q, torch.inf),), (0,)

    found = adjudicate.rerun_float64(node, Deadline(60.0))

    assert found.finite
    assert found.absmax == pytest.approx(65000.0, rel=1e-3)
