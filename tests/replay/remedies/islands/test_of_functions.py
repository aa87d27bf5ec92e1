"""Islands of named functions inside a module."""

import warnings

import pytest
import torch
from island_models import Wrapped
from torch import nn

import hypocenter

torch.set_num_threads(1)


class Ops(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Linear(4, 4)

    def forward(self, a, b):
        return a @ b, a.sum(dim=-1), torch.einsum("ij,jk->ik", a, b), torch.softmax(self.scale(a), -1)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_an_op_island_takes_the_named_functions_only(checkpointed):
    model = Ops().half()
    a = torch.full((4, 4), 300.0).half().requires_grad_()

    with hypocenter.island(model, [":matmul", ":sum"], cast_back=False):
        runner = Wrapped(model, False) if checkpointed else model
        product, total, einsum, soft = runner(a, a)
        product.sum().backward()  # before the island goes: a checkpoint calls the forward again

    assert torch.equal(product, torch.full((4, 4), 360000.0))
    assert total.dtype == torch.float32
    assert torch.isinf(einsum).all()
    assert soft.dtype == torch.float16
    assert a.grad.dtype == torch.float16


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_an_op_island_compiles_in_one_graph(backend):
    torch._dynamo.reset()
    model = Ops()
    a = torch.full((4, 4), 200.0, requires_grad=True)
    hypocenter.island(model, [":matmul"])
    compiled = torch.compile(model, backend=backend, fullgraph=True)

    with torch.autocast("cpu", torch.float16):
        eager, out = model(a, a), compiled(a, a)
    out[0].sum().backward()

    assert torch.equal(out[0], torch.full((4, 4), 160000.0))
    assert torch.isinf(out[2]).all()
    assert all(torch.equal(x, y) for x, y in zip(eager, out, strict=True))


def test_an_op_island_is_over_when_its_module_returns():
    model = nn.Sequential(Ops())
    hypocenter.island(model, ["0:matmul"])
    a = torch.full((4, 4), 200.0)

    with torch.autocast("cpu", torch.float16):
        inside, outside = model[0](a, a)[0], a @ a

    assert torch.isfinite(inside).all()
    assert torch.isinf(outside).all()


def test_a_function_that_is_never_called_is_said_once():
    attention = nn.MultiheadAttention(4, 1)
    hypocenter.island(attention, [":softmax"])
    x = torch.ones(2, 1, 4)

    with pytest.warns(UserWarning, match="MultiheadAttention did not call 'softmax' itself"):
        attention(x, x, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attention(x, x, x)
        hypocenter.island(model := Ops(), [":matmul", ":einsum", ":softmax"])
        model(torch.ones(4, 4), torch.ones(4, 4))


def test_bfloat16_instead_of_float16():
    model = Ops().half()
    a = torch.full((4, 4), 300.0).half()

    with hypocenter.island(model, [""], dtype=torch.bfloat16, cast_back=False):
        out = model(a, a)
    linear = nn.Linear(2, 2)
    with hypocenter.island(linear, [""], dtype=torch.bfloat16), torch.autocast("cpu", torch.float16):
        under_autocast = linear(torch.ones(1, 2))

    assert {o.dtype for o in out} == {torch.bfloat16}
    assert torch.isfinite(out[0]).all()
    assert under_autocast.dtype == torch.bfloat16
