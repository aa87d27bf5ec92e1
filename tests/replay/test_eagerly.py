"""What was captured into a graph is done again as it is written, and put back."""

import torch
from torch import nn

from hypocenter.replay.eagerly import Eagerly


def make_graphed_callables(module):
    """As torch and Transformer Engine put a graph in place of a `forward`; results are always in the same memory."""
    static = torch.zeros(2, 3)

    def graphed(x):
        return static.copy_(orig_fwd_of_module(x).detach())

    orig_fwd_of_module = module.forward

    def make_graphed_forward(func, graph_training_state, graphed, orig_fwd):
        def new_fwd(*args, **kwargs):
            return graphed(*args, **kwargs) if func.training == graph_training_state else orig_fwd(*args, **kwargs)

        return new_fwd

    module.forward = make_graphed_forward(module, module.training, graphed, module.forward)
    return static


def test_a_graphed_forward_writes_nowhere_in_a_replay():
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    static = make_graphed_callables(model[0])
    captured, x = model[0].forward, torch.ones(2, 4)

    with Eagerly(model.modules()) as eagerly:
        made = model(x)

    assert eagerly.in_place_of_compiled
    assert made.requires_grad
    assert not static.any()
    assert model[0].forward is captured


def test_a_forward_of_the_users_own_is_left_as_it_is():
    model = nn.Linear(4, 3)
    model.forward = lambda x: x + 1

    with Eagerly(model.modules()) as eagerly:
        assert model(torch.ones(1)).tolist() == [2.0]

    assert not eagerly.in_place_of_compiled
