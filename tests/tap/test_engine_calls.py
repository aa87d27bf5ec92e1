"""Every way into autograd's engine is heard of, once, and nothing is left behind."""

import inspect
import traceback

import pytest
import torch
from torch.autograd import Variable
from torch.utils.checkpoint import checkpoint

from hypocenter.tap.updates import UpdateTap

PLAIN = Variable._execution_engine


class Listener:
    paused = False

    def __init__(self):
        self.calls = []

    def before_backward(self, roots, seeds, retain_graph):
        self.calls.append(("before_backward", [tuple(r.shape) for r in roots], seeds, retain_graph))

    def after_backward(self):
        self.calls.append(("after_backward",))

    def before_gradients(self, roots, inputs, seeds, retain_graph):
        self.calls.append(("before_gradients", inputs))
        return True

    def after_gradients(self, gradients):
        self.calls.append(("after_gradients", gradients))


@pytest.fixture
def listener():
    listener = Listener()
    undo = UpdateTap(listener).attach()
    yield listener
    undo()
    assert Variable._execution_engine is PLAIN


def names(listener):
    return [call[0] for call in listener.calls]


def backward_of_megatron(output, grad):
    Variable._execution_engine.run_backward(
        tensors=(output,), grad_tensors=(grad,), keep_graph=False, create_graph=False, inputs=(),
        allow_unreachable=True, accumulate_grad=True,
    )  # fmt: skip


def test_a_direct_call_is_a_backward_with_its_seeds(listener):
    weight = torch.ones(3, requires_grad=True)
    output, grad = weight * 2, torch.arange(3.0)
    output.data = torch.empty(1)  # as a pipeline does with what it has sent away

    backward_of_megatron(output, grad)

    assert names(listener) == ["before_backward", "after_backward"]
    assert listener.calls[0] == ("before_backward", [(1,)], [grad], False)
    assert weight.grad.tolist() == [0.0, 2.0, 4.0]


def test_positional_arguments_are_read_as_the_engine_reads_them(listener):
    weight = torch.ones(2, requires_grad=True)
    output = weight.sum()

    Variable._execution_engine.run_backward((output,), (torch.tensor(1.0),), True, False, (), True, True)
    (given,) = Variable._execution_engine.run_backward((output,), (torch.tensor(3.0),), False, False, (weight,))

    assert names(listener) == ["before_backward", "after_backward", "before_gradients", "after_gradients"]
    assert listener.calls[0][3] is True
    assert given.tolist() == [3.0, 3.0]
    ((parameter, gradient),) = listener.calls[3][1]
    assert (parameter is weight, gradient is given) == (True, True)


def test_what_torch_calls_itself_counts_once(listener):
    weight = torch.ones(2, requires_grad=True)

    weight.sum().backward()
    torch.autograd.grad(weight.sum(), weight)
    checkpoint(torch.sin, weight, use_reentrant=True).sum().backward()

    assert names(listener) == [
        "before_backward", "after_backward", "before_gradients", "after_gradients", "before_backward", "after_backward",
    ]  # fmt: skip


def test_inside_a_backward_the_engine_is_the_plain_one(listener):
    weight = torch.ones(2, requires_grad=True)
    seen = []
    weight.register_hook(lambda grad: seen.append(Variable._execution_engine.run_backward))

    weight.sum().backward()

    assert not any(inspect.isfunction(each) for each in seen)


def test_a_parameter_is_known_by_its_place_in_the_graph(listener):
    weight = torch.ones(2, requires_grad=True)
    output = weight.sum()
    place = torch.autograd.graph.get_gradient_edge(weight)

    torch.autograd.grad(output, place)

    assert listener.calls[0][1][0] is weight


def test_an_error_of_the_engine_shows_no_frame_of_ours(listener):
    weight = torch.ones(2, requires_grad=True)
    output = weight.square().sum()
    backward_of_megatron(output, torch.tensor(1.0))

    with pytest.raises(RuntimeError, match="second time") as caught:
        backward_of_megatron(output, torch.tensor(1.0))

    assert [f.name for f in traceback.extract_tb(caught.value.__traceback__)][1:] == ["backward_of_megatron"]
    assert names(listener) == ["before_backward", "after_backward", "before_backward"]
