"""What summaries on a device take beside the tensor: counted in bytes of results that live at the same time."""

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from hypocenter.summary.reducers import torch_deferred
from hypocenter.summary.reducers.torch import TorchReducer, summarize


class Live(TorchDispatchMode):
    """The most bytes that results of operators have taken at once."""

    def __init__(self):
        super().__init__()
        self.held, self.most = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view and isinstance(out, torch.Tensor):
            storage = out.untyped_storage()
            self.held[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.held = {key: pair for key, pair in self.held.items() if not pair[0].expired()}
        self.most = max(self.most, sum(n for _, n in self.held.values()))
        return out


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16, torch.float64, torch.int64])
def test_a_large_tensor_is_taken_in_chunks(monkeypatch, same, sampled, dtype):
    monkeypatch.setattr(torch_deferred, "CHUNK", 1 << 16)
    x = (torch.randn(1 << 20, generator=torch.Generator().manual_seed(1)) * 50).to(dtype)
    if dtype.is_floating_point:
        x[7], x[70_000], x[999_999] = float("nan"), float("inf"), float("-inf")
    reducer = TorchReducer(defer_cpu=True)

    with Live() as live:
        reducer.add(x)

    assert live.most < 16 * (1 << 16)  # a few copies of one chunk in float32
    same(reducer.drain()[0], summarize(x), rel=1e-4, but=sampled)
