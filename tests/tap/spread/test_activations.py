"""What is said of activations of plain tensors, by their sizes."""

import pytest
import torch
from torch import nn

from hypocenter.nouns import Place
from hypocenter.tap.names import NameMap
from hypocenter.tap.placement import Wrappers
from hypocenter.tap.spread.activations import SpreadOfActivations
from hypocenter.tap.spread.parameters import SpreadOfParameters

BATCH, LENGTH, WIDTH, INNER = 4, 6, 10, 14  # INNER: of one of two ranks


class Layer(nn.Module):
    """As Megatron-Core marks its weights."""

    def __init__(self, n_in, n_out, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n_out, n_in))
        self.weight.tensor_model_parallel, self.weight.partition_dim = dim is not None, dim or 0


@pytest.fixture
def model():
    return nn.ModuleDict(
        {"norm": nn.LayerNorm(WIDTH), "up": Layer(WIDTH, INNER, 0), "act": nn.ReLU(), "down": Layer(INNER, WIDTH, 1)}
    )


def spread(model, batch=None, **groups):
    place = Place(rank=1, world_size=4, groups=groups)
    names = NameMap()
    names.add_root(model)
    found = SpreadOfActivations(SpreadOfParameters(names, Wrappers(), lambda: place), names, lambda: place)
    found.begin((torch.zeros(BATCH, LENGTH, dtype=torch.int64) if batch is None else batch,), {})
    return found


@pytest.mark.parametrize(
    ("shape", "placement"),
    [
        ((BATCH, LENGTH, WIDTH), "dp=S(0)"),
        ((LENGTH, BATCH, WIDTH), "dp=S(1)"),
        ((BATCH * LENGTH, WIDTH), "dp=S(0)"),
        ((LENGTH, WIDTH), "dp=R"),
        ((), "dp=P"),
    ],
)
def test_samples_are_spread_over_data_parallel_ranks(model, shape, placement):
    found = spread(model, dp=(0, 1)).of(None, "out", torch.zeros(shape))

    assert found.placement == placement


def test_the_gradient_of_what_all_samples_share_is_a_summand(model):
    over = spread(model, dp=(0, 1))

    found = over.of_gradient(torch.zeros(LENGTH, WIDTH), over.of(None, "out", torch.zeros(LENGTH, WIDTH)))

    assert found.placement == "dp=P"


@pytest.mark.parametrize(
    ("module", "side", "width", "placement"),
    [
        ("norm", "out", WIDTH, "tp=R"),
        ("up", "in", WIDTH, "tp=R"),
        ("up", "out", INNER, "tp=S(2)"),
        ("up", "out", 2 * INNER, "tp=R"),
        ("act", "out", INNER, "tp=S(2)"),
        ("down", "in", INNER, "tp=S(2)"),
        ("down", "out", WIDTH, "tp=R"),
        ("act", "out", 5, ""),
    ],
)
def test_widths_tell_what_tensor_parallel_ranks_share(model, module, side, width, placement):
    found = spread(model, tp=(0, 1)).of(model[module], side, torch.zeros(LENGTH, BATCH, width))

    assert found.placement == placement


def test_half_the_length_is_a_shared_sequence(model):
    found = spread(model, tp=(0, 1)).of(model["norm"], "in", torch.zeros(LENGTH // 2, BATCH, WIDTH))

    assert (found.placement, found.shape, found.offset) == ("tp=S(0)", (LENGTH, BATCH, WIDTH), (LENGTH // 2, 0, 0))


def test_heads_are_left_out(model):
    assert spread(model, tp=(0, 1)).of(model["act"], "out", torch.zeros(BATCH, 2, LENGTH, 5)).placement == ""


def test_a_process_that_is_alone_is_told_nothing(model):
    assert spread(model).of(model["norm"], "out", torch.zeros(BATCH, LENGTH, WIDTH)) is None
