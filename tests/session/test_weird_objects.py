"""Arguments and outputs that cannot be copied, compared or walked: training goes on, bit for bit."""

import threading
from typing import NamedTuple

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.record.reader import open_run


class Uncopyable:
    def __init__(self, tensor):
        self.tensor, self.lock = tensor, threading.Lock()

    def __copy__(self):
        raise TypeError("do not copy me")

    def __deepcopy__(self, memo):
        raise TypeError("do not copy me")

    def __reduce__(self):
        raise TypeError("do not pickle me")


class Slotted:
    __slots__ = ("tensor",)

    def __init__(self, tensor):
        self.tensor = tensor


class Touchy:
    """Every attribute raises."""

    def __init__(self, tensor):
        object.__setattr__(self, "_tensor", tensor)

    def __getattr__(self, name):
        raise RuntimeError(f"no {name}")


class Pair(NamedTuple):
    tensor: torch.Tensor
    note: str


def cyclic(tensor):
    loop = {"tensor": tensor}
    loop["self"] = loop
    return loop


def generator_of(tensor):
    yield tensor


class Takes(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)

    def forward(self, holder, extra=None):
        if isinstance(holder, dict):
            x = holder["tensor"]
        elif isinstance(holder, Touchy):
            x = object.__getattribute__(holder, "_tensor")
        elif hasattr(holder, "tensor"):
            x = holder.tensor
        else:
            x = next(iter(holder))
        return {"out": self.fc(x), "again": holder, "fn": lambda: x}


def train(wrap):
    torch.manual_seed(0)
    model = Takes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        out = model(wrap(torch.randn(2, 4)), extra=wrap)["out"]
        optimizer.zero_grad()
        out.pow(2).mean().backward()
        optimizer.step()
        losses.append(float(out.sum()))
    return losses, model.fc.weight.detach().clone()


@pytest.mark.parametrize("level", ["sentinel", "tensors"])
@pytest.mark.parametrize(
    "wrap", [Uncopyable, Slotted, Touchy, lambda t: Pair(t, "x"), cyclic, generator_of, lambda t: {"tensor": t, 3: {4}}]
)
def test_training_goes_on(tmp_path, wrap, level):
    plain = train(wrap)

    with hypocenter.watch(level=level, out=tmp_path / "run"):
        watched = train(wrap)

    assert plain[0] == watched[0]
    assert torch.equal(plain[1], watched[1])
    assert [s.step for _, s in open_run(tmp_path / "run").step_records()] == [0, 1, 2]
