"""Modules in float32 inside autocast and inside half-precision models."""

import pytest
import torch
from torch import nn

from hypocenter.replay.remedies.fp32_island import island


def overflowing(half):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8))
    with torch.no_grad():
        model[1].weight.fill_(1e4)
    return model.half() if half else model


@pytest.mark.parametrize("half", [False, True])
def test_an_overflowing_linear_is_finite_in_an_island_whose_output_stays_float32(half):
    model = overflowing(half)
    x = torch.ones(2, 8).mul(30)

    with torch.autocast("cpu", torch.float16, enabled=not half):
        before = model[1](model[0](x.half() if half else x))
        with island([model[1]], cast_back=False):
            inside = model[1](model[0](x.half() if half else x))
        after = model[1](model[0](x.half() if half else x))

    assert not torch.isfinite(before).all()
    assert torch.isfinite(inside).all()
    assert inside.dtype == torch.float32
    assert torch.equal(before, after)


def test_gradients_flow_through_the_cast_to_the_half_parameters():
    model = nn.Linear(4, 1).half()

    with island([model], cast_back=True):
        out = model(torch.ones(2, 4).half())
    (grad,) = torch.autograd.grad(out.float().sum(), [model.weight])

    assert out.dtype == torch.float16
    assert grad.dtype == torch.float16
    assert torch.equal(grad, torch.full((1, 4), 2.0).half())


def test_everything_is_put_back_also_after_an_error():
    model = nn.Linear(4, 1).half()
    weight = model.weight

    with pytest.raises(RuntimeError), island([model], cast_back=True):
        model(torch.ones(2, 5).half())

    assert model._parameters["weight"] is weight
    assert "forward" not in vars(model)
