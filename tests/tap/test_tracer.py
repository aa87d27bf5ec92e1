"""The op trace: who read what from whom, and where values stopped being finite."""

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from hypocenter.diagnose.origin import blame, killed_infinities
from hypocenter.optrace import LITERAL_NEGINF, NEGINF, POSINF
from hypocenter.tap.names import NameMap
from hypocenter.tap.nodes import nonfinite_bits
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.tracer import OpTracer


def traced(model, x, loss_of):
    names = NameMap()
    names.add_root(model)
    context = OpContext(names.module_name)
    params = {id(p.untyped_storage()._cdata): n for n, p in names.parameters()}
    tracer = OpTracer(context, lambda t: ("param", "w") if id(t.untyped_storage()._cdata) in params else ("batch", "x"))
    undo = context.attach()
    try:
        with tracer:
            loss = loss_of(model(x))
            grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    finally:
        undo()
    return tracer, loss, grads


def origin(tracer, tensor):
    found = blame(tracer.trace(), [tracer.edge_to(tensor)])
    assert found is not None
    return found


class Masked(nn.Module):
    """T5's relative position bucket in small: log(0) that `where` throws away, then a real overflow."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        position = torch.arange(4).float()
        bias = torch.where(position < 1, position, torch.log(position))
        scores = self.fc(x) + bias
        return (scores * 1e30) * 1e30


def test_a_discarded_log_of_zero_is_listed_and_the_overflow_is_blamed():
    torch.manual_seed(0)
    tracer, loss, _ = traced(Masked(), torch.randn(2, 4), lambda y: y.sum())

    found = origin(tracer, loss)

    node = tracer.nodes[found.origin]
    assert node.traced.op == "aten.mul.Tensor"
    assert node.place.source().text == "return (scores * 1e30) * 1e30"
    assert "aten.log.default" in [tracer.nodes[i].traced.op for i in found.killed]


class Attention(nn.Module):
    def forward_scores(self, x):
        return x @ x.transpose(-1, -2)

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        mask = torch.full((3, 3), float("-inf")).triu(1)
        return torch.softmax(self.forward_scores(self.fc(x)) + mask, -1)


def test_a_causal_masks_infinities_are_constants():
    tracer, loss, _ = traced(Attention(), torch.randn(2, 3, 4), lambda y: y.sum())

    bits = {node.traced.bits for node in tracer.nodes}
    assert torch.isfinite(loss)
    assert bits == {0, LITERAL_NEGINF}
    assert killed_infinities(tracer.trace()) == ()


def test_uninitialised_memory_says_nothing():
    class Scratch(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            buffer = torch.empty(2, 4)
            buffer.copy_(self.fc(x))
            return buffer

    tracer, _, _ = traced(Scratch(), torch.randn(2, 4), lambda y: y.sum())

    assert {node.traced.bits for node in tracer.nodes} == {0}


def test_backward_ops_carry_the_site_and_line_of_their_forward_op():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 1, bias=False)

        def forward(self, x):
            return torch.sqrt(self.fc(x).pow(2))

    model = Root()
    tracer, _, grads = traced(model, torch.zeros(2, 4), lambda y: y.sum())

    node = tracer.nodes[origin(tracer, grads[0]).origin]
    assert node.place.phase == "backward"
    assert node.place.node == "SqrtBackward0"
    assert node.place.forward_op == "aten.sqrt.default"
    assert "torch.sqrt" in node.place.source().text


class Inverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad / (x - x)


class InverseBackwardOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad / (grad - grad)


def test_the_backward_of_a_function_that_only_hands_on_is_where_it_was_called():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.dropout = nn.Linear(4, 4), nn.Dropout(0.5)

        def forward(self, x):
            return self.dropout(InverseBackwardOnly.apply(self.fc(x)))

    tracer, _, grads = traced(Block(), torch.randn(2, 4), lambda y: y.sum())

    node = tracer.nodes[origin(tracer, grads[0]).origin]
    assert (node.traced.op, node.place.phase, node.place.site) == ("aten.div.Tensor", "backward", "")
    assert node.place.module == "Block"


class Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.fc, self.scale = nn.Linear(4, 4), scale

    def forward(self, x):
        return self.scale(self.fc(x))


def by_hook(y):
    y = y * 2
    y.register_hook(lambda grad: grad / (grad - grad))
    return y


def by_hook_before_an_operator(y):
    y.register_hook(lambda grad: grad / (grad - grad))
    return torch.tanh(y) + torch.exp(y)


@pytest.mark.parametrize(
    ("scale", "line"),
    [
        (Inverse.apply, "return grad / (x - x)"),
        (by_hook, "y.register_hook(lambda grad: grad / (grad - grad))"),
        (by_hook_before_an_operator, "y.register_hook(lambda grad: grad / (grad - grad))"),
    ],
    ids=["function", "hook", "hook-before-an-operator"],
)
def test_what_python_does_in_backward_has_its_own_operator_and_line(scale, line):
    tracer, _, grads = traced(Scaled(scale), torch.randn(2, 4), lambda y: y.sum())

    node = tracer.nodes[origin(tracer, grads[0]).origin]

    assert (node.traced.op, node.place.phase, node.place.forward_op) == ("aten.div.Tensor", "backward", "")
    assert node.place.source().text == line


def test_a_function_run_again_in_backward_keeps_the_lines_of_its_operators():
    def again(y):
        return torch.utils.checkpoint.checkpoint(lambda v: torch.exp(v) * v, y, use_reentrant=False)

    tracer, _, _ = traced(Scaled(again), torch.randn(2, 4), lambda y: y.sum())

    lines = {
        node.place.source().text
        for node in tracer.nodes
        if node.place.phase == "backward" and node.traced.op == "aten.exp.default"
    }
    assert lines == {"return torch.utils.checkpoint.checkpoint(lambda v: torch.exp(v) * v, y, use_reentrant=False)"}


def in_tensor_hook(do):
    y = torch.ones(2, requires_grad=True) * 2
    y.register_hook(lambda grad: do())
    y.sum().backward()


def in_accumulate_hook(do):
    x = torch.ones(2, requires_grad=True)
    x.register_post_accumulate_grad_hook(lambda _: do())
    (x * 2).sum().backward()


def in_function(do):
    class Doing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            do()
            return grad

    Doing.apply(torch.ones(2, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("inside", [in_tensor_hook, in_accumulate_hook, in_function])
def test_what_is_done_again_inside_a_backward_keeps_its_phases(inside):
    tracers = []

    def again():
        with torch.enable_grad():
            tracers.append(traced(Masked(), torch.randn(2, 4), lambda y: y.sum())[0])

    inside(again)

    phases = [node.place.phase for node in tracers[0].nodes]
    assert list(dict.fromkeys(phases)) == ["forward", "loss", "backward"]


def test_values_written_in_place_into_a_part_of_a_tensor_are_followed():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            out = torch.zeros(2, 8)
            out[:, :4] = self.fc(x)
            out[:, 4:] = torch.log(self.fc(x) * 0)
            return out

    tracer, loss, _ = traced(Writes(), torch.randn(2, 4), lambda y: y.sum())

    assert tracer.nodes[origin(tracer, loss).origin].traced.op == "aten.log.default"


def test_kinds_of_non_finite_values_for_every_floating_dtype():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2):
        clean = torch.ones(5).to(dtype)
        assert nonfinite_bits(clean) == 0
        assert nonfinite_bits(torch.tensor([1.0, float("inf")]).to(dtype)) == POSINF
        assert nonfinite_bits(torch.tensor([1.0, float("-inf")]).to(dtype)) == NEGINF
    assert nonfinite_bits(torch.full((4,), 3e38)) == 0  # the norm overflows, the values do not
    assert nonfinite_bits(torch.ones(3, dtype=torch.int64)) == 0
    assert nonfinite_bits(torch.empty(0)) == 0


def test_a_batch_of_which_a_good_part_was_read_first_is_bad_all_the_same():
    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 1)

        def forward(self, x):
            return self.fc(x[0]) + self.fc(x[1])

    x = torch.ones(3, 4)
    x[1, 3] = float("nan")
    tracer, loss, _ = traced(Halves(), (x[:, :2], x[:, 2:]), lambda y: y.sum())

    found = origin(tracer, loss)
    assert found.origin is None
    assert (tracer.leaves[found.leaf].kind, tracer.leaves[found.leaf].tensor.shape) == ("batch", (3, 2))


def test_what_is_not_finite_is_not_held():
    held = []

    class Temporaries(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            h = torch.log(self.fc(x) * 0.0 - 1.0)
            for _ in range(4):
                h = h.detach() * 2.0
                held.append(StorageWeakRef(h.untyped_storage()))
            return self.fc(h)

    tracer, loss, _ = traced(Temporaries(), torch.randn(2, 4), lambda y: y.sum())

    assert [ref.expired() for ref in held[:-1]] == [True] * 3
    assert tracer.nodes[origin(tracer, loss).origin].traced.op == "aten.log.default"
