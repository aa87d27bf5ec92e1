"""The share of parameters, and bytes kept for backward."""

import torch
from torch import nn

import hypocenter
from hypocenter.replay.cure.finder import KeptForBackward, parameter_share


def test_the_share_counts_shared_parameters_once():
    shared = nn.Linear(4, 4, bias=False)
    model = nn.Sequential(shared, shared, nn.Linear(4, 12, bias=False))

    assert parameter_share([model], [model[0], model[1]]) == 16 / 64
    assert parameter_share([model], [model]) == 1
    assert parameter_share([nn.ReLU()], []) == 0


def test_an_island_keeps_its_activations_in_float32():
    model = nn.Sequential(nn.Linear(64, 64), nn.Sigmoid()).half()
    x = torch.randn(1000, 64).half()

    with KeptForBackward() as narrow:
        narrow_out = model(x)
    with hypocenter.island(model, ["1"], cast_back=False), KeptForBackward() as wide:
        wide_out = model(x)

    extra = wide.n_bytes - narrow.n_bytes
    assert extra == narrow_out.numel() * 2  # sigmoid keeps its output, now in float32
    assert wide_out.dtype == torch.float32
