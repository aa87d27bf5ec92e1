"""Laws about which parameters a MindSpore model has: names that were one stay one, what is trained can be held."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

sys.path.insert(0, str(Path(__file__).parent))

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run

N_STEPS, AT = 8, 4


class Net(nn.Cell):
    """An embedding and a head, which are one parameter."""

    def __init__(self, *, is_tied: bool = True) -> None:
        super().__init__()
        self.tok, self.head = nn.Embedding(12, 6), nn.Dense(6, 12, has_bias=False)
        if is_tied:
            self.head.weight = self.tok.embedding_table

    def construct(self, ids: Any) -> Any:
        return self.head(self.tok(ids))


def loaded(net: Net, *, is_tied: bool) -> Net:
    found = Net(is_tied=is_tied)
    found.tok.embedding_table.set_data(Tensor(net.tok.embedding_table.asnumpy()))
    found.head.weight.set_data(Tensor(net.head.weight.asnumpy()))
    return found


def untied_in_place(net: Net) -> Net:
    net.head.weight = Parameter(Tensor(net.tok.embedding_table.asnumpy()), name="head.weight")
    return net


def begun_alike(net: Net) -> Net:
    """Another model, untied, whose two weights begin as copies."""
    found = Net(is_tied=False)
    found.head.weight.set_data(Tensor(found.tok.embedding_table.asnumpy()))
    return found


AGAIN: dict[str, tuple[Callable[[Net], Net], int]] = {
    "never tied again": (lambda net: loaded(net, is_tied=False), 1),
    "untied in place": (untied_in_place, 1),
    "a deep copy": (copy.deepcopy, 0),
    "tied again": (lambda net: loaded(net, is_tied=True), 0),
    "begun anew": (lambda net: Net(is_tied=False), 0),
    "begun alike": (begun_alike, 0),
    "the same": (lambda net: net, 0),
}


@pytest.mark.parametrize("name", AGAIN)
def test_hc265_a_tie_that_is_not_made_again(name: str, tmp_path: Path) -> None:
    again, n = AGAIN[name]

    assert untied(tmp_path / "run", Net(), again) == [("HC265", "warning", AT, "head.weight")] * n


def untied(out: Path, net: Net, again: Callable[[Net], Net]) -> list[tuple[str, str, int, str | None]]:
    ms.set_seed(1)
    draw = np.random.default_rng(0)

    def forward(ids: Any) -> Any:
        return ops.cross_entropy(net(ids), (ids + 1) % 12)

    with hypocenter.watch(out=str(out)):
        for step in range(N_STEPS):
            if step in (0, AT):
                net = again(net) if step else net
                optimizer = nn.Adam(net.trainable_params(), 1e-2)
                gradient = ms.value_and_grad(forward, None, optimizer.parameters)
            optimizer(gradient(Tensor(draw.integers(0, 12, 16), ms.int32))[1])
    return [(f.code, f.severity, f.step, f.site) for f in diagnose(open_run(out)).findings if f.code == "HC265"]
