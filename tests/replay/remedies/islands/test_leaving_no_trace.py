"""Islands are taken off in any order, are copied and freed with the model, and leave other tools and buffers alone."""

import copy
import inspect
import pickle
import weakref

import pytest
import torch
from island_models import built
from torch import nn

import hypocenter

torch.set_num_threads(1)


def test_islands_are_taken_off_in_any_order():
    model = built()
    x = torch.randn(4, 8)
    one, two = hypocenter.island(model, ["blocks.0"]), hypocenter.island(model, ["blocks.0.qkv", "blocks.0:sum"])

    one.remove()
    assert "forward" in vars(model.blocks[0].qkv)
    two.remove()
    one.remove()

    assert all("forward" not in vars(m) for m in model.modules())
    assert "removed" in repr(one)
    model(x)


def test_another_tools_forward_is_kept_below_and_above():
    linear = nn.Linear(2, 2)
    calls = []
    original = linear.forward
    linear.forward = lambda x: calls.append("below") or original(x)
    below = linear.forward
    handle = hypocenter.island(linear, [""])
    layer = linear.forward
    linear.forward = lambda x: calls.append("above") or layer(x)

    linear(torch.ones(1, 2))
    handle.remove()
    linear(torch.ones(1, 2))

    assert calls == ["above", "below"] * 2
    assert layer.inner is below


def test_copies_and_pickles_have_islands_of_their_own():
    model = built(torch.float16).eval()
    hypocenter.island(model, ["blocks.0", "blocks.1:sum"])
    x = torch.randn(4, 8).half()
    out = model(x)[0]

    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert vars(twin.blocks[0])["forward"].module is twin.blocks[0]
        assert torch.equal(twin(x)[0], out)
        with torch.no_grad():
            twin.blocks[0].qkv.weight.zero_()
        assert not torch.equal(twin(x)[0], out)
    assert torch.equal(model(x)[0], out)


def test_the_model_can_be_freed():
    model = built()
    handle = hypocenter.island(model, ["blocks.0"])
    gone = weakref.ref(model)

    del model, handle
    import gc

    gc.collect()
    assert gone() is None


def test_the_signature_is_the_users():
    model = built()
    hypocenter.island(model, ["blocks.0", "first:sum"])

    assert list(inspect.signature(model.blocks[0].forward).parameters) == ["x", "mask", "more"]
    assert list(inspect.signature(model.first.forward).parameters) == ["input"]


def test_everything_is_put_back_after_an_error():
    model = nn.Linear(4, 1).half()
    weight = model.weight
    hypocenter.island(model, [""])

    with pytest.raises(RuntimeError, match="shape"):
        model(torch.ones(2, 5).half())

    assert model._parameters["weight"] is weight


def test_without_gradients_and_in_inference_mode():
    model = built(torch.float16)
    hypocenter.island(model, ["blocks.*"])
    x = torch.randn(4, 8).half()

    with torch.inference_mode():
        model(x)
    with torch.no_grad():
        model(x)
    model(x)[0].sum().backward()

    assert int(model.blocks[0].norm.num_batches_tracked) == 3
    assert model.blocks[0].qkv.weight.grad is not None


def test_a_buffer_that_forward_replaces_keeps_its_format():
    class Average(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(2))

        def forward(self, x):
            self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
            return x - self.mean

    model = Average().half()
    hypocenter.island(model, [""])
    model(torch.ones(3, 2).half())

    assert torch.equal(model.mean, torch.full((2,), 0.5).half())


@pytest.mark.parametrize(
    "normed", [nn.utils.weight_norm, nn.utils.spectral_norm, nn.utils.parametrizations.weight_norm]
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_weights_computed_before_the_forward_are_cast_too(normed):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), normed(nn.Linear(4, 4))).bfloat16().eval()
    x = torch.randn(2, 4).bfloat16()

    with hypocenter.island(model, ["1"]):
        out = model(x)
    out.sum().backward()

    assert torch.allclose(out.float(), model(x).float(), rtol=2e-2, atol=1e-2)
    assert out.dtype == torch.bfloat16
    assert all(p.grad is not None for p in model.parameters())


def test_a_cache_in_a_plain_attribute_is_written_in_its_format():
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = torch.zeros(2, dtype=torch.float16)

        def forward(self, x):
            self.seen += x
            return x + self.seen

    model = Cached()
    hypocenter.island(model, [""])
    model(torch.ones(2).half())

    assert torch.equal(model.seen, torch.ones(2).half())
