"""The law of terms in MindSpore: a way to the loss that loses its gradient is told; what is cut on purpose is not."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from mindspore.common.api import _no_grad

sys.path.insert(0, str(Path(__file__).parent))

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run

N_STEPS, AT, WIDTH, N_TOKENS = 10, 5, 12, 20


class Net(nn.Cell):
    """Its embedding is its head too; a router has a loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.router = nn.Embedding(N_TOKENS, WIDTH), nn.Dense(WIDTH, 2)
        self.up, self.down = nn.Dense(WIDTH, 24), nn.Dense(24, WIDTH)
        self.of_head: Callable[[Any], Any] = lambda weight: weight
        self.of_branch: Callable[[Any], Any] = lambda hidden: hidden

    def hidden(self, tokens: Any) -> Any:
        hidden = self.embed(tokens)
        share = ops.softmax(self.router(hidden), -1)
        self.balance = (share.mean(0) ** 2).sum()
        return hidden + share[:, :1] * self.down(ops.gelu(self.up(self.of_branch(hidden))))

    def construct(self, tokens: Any) -> Any:
        return ops.matmul(self.hidden(tokens), self.of_head(self.embed.embedding_table).T)


Loss = Callable[[Net, Any, int], Any]


def plain(net: Net, tokens: Any, step: int) -> Any:
    return ops.cross_entropy(net(tokens), (tokens + 1) % N_TOKENS) + 0.1 * net.balance


def train(out: Path, loss_of: Loss, **options: Any) -> list[Finding]:
    ms.set_seed(1)
    net, steps = Net(), list[int]()
    optimizer = nn.Adam(net.trainable_params(), 1e-2)
    draw = np.random.default_rng(0)
    gradient = ms.value_and_grad(lambda tokens: loss_of(net, tokens, len(steps)), None, optimizer.parameters)
    with hypocenter.watch(net, out=str(out), **{"audit": "every=1", **options}):
        for step in range(N_STEPS):
            optimizer(gradient(Tensor(draw.integers(0, N_TOKENS, 16), ms.int32))[1])
            steps.append(step)
    return [each for each in diagnose(open_run(out)).findings if "ways to the loss" in each.title]


def tied(net: Net, tokens: Any, step: int) -> Any:
    net.of_head = lambda weight: ops.stop_gradient(weight) if step >= AT else weight
    return plain(net, tokens, step)


def branch(net: Net, tokens: Any, step: int) -> Any:
    net.of_branch = lambda hidden: ops.stop_gradient(hidden) if step == AT else hidden
    return plain(net, tokens, step)


def term(net: Net, tokens: Any, step: int) -> Any:
    loss = ops.cross_entropy(net(tokens), (tokens + 1) % N_TOKENS)
    return loss + 0.1 * (ops.stop_gradient(net.balance) if step >= AT else net.balance)


def no_grad_that_leaks(net: Net, tokens: Any, step: int) -> Any:
    def doubled(hidden: Any) -> Any:
        if step < AT:
            return 2 * hidden
        with _no_grad():
            return 2 * hidden

    net.of_branch = doubled
    return plain(net, tokens, step)


FAULTS: dict[str, tuple[Loss, str]] = {
    "tied": (tied, "the model"),
    "branch": (branch, "up"),
    "term": (term, "loss"),
    "no grad": (no_grad_that_leaks, "up"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["branch", pytest.param("tied", marks=pytest.mark.queues), "term", "no grad"])
def test_hc233_a_way_that_loses_its_gradient(name: str, tmp_path: Path) -> None:
    fault, where = FAULTS[name]

    found = train(tmp_path / "run", fault)

    assert [(f.code, f.step, f.param, f.severity) for f in found] == [("HC233", AT, "embed.embedding_table", "note")]
    assert f"in {where} " in found[0].why[0]


def target(net: Net, tokens: Any, step: int) -> Any:
    """A slow copy, and a prediction that is not gone back from."""
    if step == 0:
        vars(net)["slow"] = copy.deepcopy(net)
    wanted = ops.stop_gradient(vars(net)["slow"](tokens))
    own = net(tokens)
    return (
        plain(net, tokens, step) + ((own - wanted) ** 2).mean() + ((ops.stop_gradient(own) - net(tokens)) ** 2).mean()
    )


def codes(net: Net, tokens: Any, step: int) -> Any:
    """A straight-through estimator with both losses of vector quantisation."""
    stop, table = ops.stop_gradient, net.embed.embedding_table
    hidden = net.hidden(tokens)
    code = net.embed(ops.matmul(hidden, table.T).argmax(-1).astype(ms.int32))
    pulled = ((code - stop(hidden)) ** 2).mean() + 0.2 * ((stop(code) - hidden) ** 2).mean()
    return ops.cross_entropy(ops.matmul(hidden + stop(code - hidden), table.T), tokens) + pulled


def now_and_then(net: Net, tokens: Any, step: int) -> Any:
    """Every seventh step a term with a target of its own."""
    loss = plain(net, tokens, step)
    return loss + ((net(tokens) - ops.stop_gradient(net(tokens))) ** 2).mean() if step % 7 == 6 else loss


def left_out(net: Net, tokens: Any, step: int) -> Any:
    """A term whose weight falls to nothing is not computed any more, but shown."""
    loss = ops.cross_entropy(net(tokens), (tokens + 1) % N_TOKENS)
    return loss + 0.1 * net.balance if step < AT else loss + 0.0 * float(net.balance.asnumpy())


HEALTHY = (plain, target, codes, now_and_then, left_out)


@pytest.mark.slow
@pytest.mark.parametrize("loss_of", HEALTHY, ids=lambda each: each.__name__)
def test_what_is_cut_on_purpose_is_not_told(loss_of: Loss, tmp_path: Path) -> None:
    assert train(tmp_path / "run", loss_of) == []


class Probed(nn.Cell):
    """A head on an encoder, cut off from it or not."""

    def __init__(self, is_cut: bool) -> None:
        super().__init__()
        self.encoder, self.head, self.is_cut = nn.Dense(6, 8), nn.Dense(8, 3), is_cut

    def construct(self, x: Any) -> Any:
        hidden = self.encoder(x)
        return self.head(ops.tanh(ops.stop_gradient(hidden) if self.is_cut else hidden))


@pytest.mark.parametrize("is_cut", [True, False])
def test_what_an_optimizer_holds_and_never_gets_a_gradient_is_a_note(is_cut: bool, tmp_path: Path) -> None:
    ms.set_seed(1)
    net = Probed(is_cut)
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    draw = np.random.default_rng(0)
    gradient = ms.value_and_grad(lambda x, y: ops.cross_entropy(net(x), y), None, optimizer.parameters)
    with hypocenter.watch(net, out=str(tmp_path / "run")):
        for _ in range(10):
            x, y = Tensor(draw.normal(size=(16, 6)), ms.float32), Tensor(draw.integers(0, 3, 16), ms.int32)
            optimizer(gradient(x, y)[1])

    found = [f for f in diagnose(open_run(tmp_path / "run")).findings if f.code == "HC233"]
    assert [f.severity for f in found] == ["note"] * is_cut
    assert all("ever comes back" in f.title for f in found)
