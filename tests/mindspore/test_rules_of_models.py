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

from by_day import first_of_each

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


AGAIN: dict[str, tuple[Callable[[Net], Net], str]] = {
    "never tied again": (lambda net: loaded(net, is_tied=False), "warning"),
    "untied in place": (untied_in_place, "note"),
    "a deep copy": (copy.deepcopy, ""),
    "tied again": (lambda net: loaded(net, is_tied=True), ""),
    "begun anew": (lambda net: Net(is_tied=False), ""),
    "begun alike": (begun_alike, ""),
    "the same": (lambda net: net, ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", first_of_each(AGAIN, lambda name: AGAIN[name][1]))
def test_hc265_a_tie_that_is_not_made_again(name: str, tmp_path: Path) -> None:
    again, severity = AGAIN[name]

    assert untied(tmp_path / "run", Net(), again) == [("HC265", severity, AT, "head.weight")] * bool(severity)


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


class Layers(nn.Cell):
    """Three layers and what a test puts between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Dense(6, 8), nn.Dense(8, 1)
        self.scale = Parameter(Tensor(np.ones(8, np.float32)), name="scale")

    def middle(self, hidden: Any) -> Any:
        """Of a subclass."""
        return hidden

    def construct(self, x: Any) -> Any:
        return self.down(ops.tanh(self.middle(self.up(x))) * self.scale)


class Listed(Layers):
    """Layers in a list."""

    def __init__(self, n: int = 3) -> None:
        super().__init__()
        self.layers = [nn.Dense(8, 8) for _ in range(n)]

    def middle(self, hidden: Any) -> Any:
        for layer in self.layers:
            hidden = hidden + layer(hidden)
        return hidden


class Tabled(Layers):
    """Parameters in a dict."""

    def __init__(self) -> None:
        super().__init__()
        draw = np.random.default_rng(0)
        self.shifts = {key: Parameter(Tensor(draw.normal(size=8), ms.float32), name=key) for key in "ab"}

    def middle(self, hidden: Any) -> Any:
        return hidden + self.shifts["a"] * self.shifts["b"]


class Anew(Layers):
    """A parameter that forward makes."""

    def middle(self, hidden: Any) -> Any:
        self.scale = Parameter(Tensor(np.ones(8, np.float32)), name="scale")
        return hidden


class LayerAnew(Layers):
    """A layer that forward makes."""

    def middle(self, hidden: Any) -> Any:
        self.extra = nn.Dense(8, 8)
        return self.extra(hidden)


class MadeOnce(Layers):
    """A layer that the first forward makes, for it knows the width."""

    def middle(self, hidden: Any) -> Any:
        if "late" not in self._cells:
            self.late = nn.Dense(hidden.shape[1], 8)
        return self.late(hidden)


class Counted(Layers):
    """What is kept of the last step is made anew, and brings no gradient."""

    def middle(self, hidden: Any) -> Any:
        self.last = Parameter(Tensor(hidden.asnumpy().mean(0)), name="last")
        return hidden + ops.stop_gradient(self.last)


class Copies(Layers):
    """Weights of the optimizer in another place, made anew for each forward."""

    def middle(self, hidden: Any) -> Any:
        self.copy = Parameter(Tensor(self.scale.asnumpy()), name="copy")
        return hidden * self.copy


class Features(nn.Cell):
    """A loss that compares features of layers, which nobody trains."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.layers = Layers(), nn.CellDict({"of": OfFeatures()})

    def construct(self, x: Any) -> Any:
        return self.net(x) + self.layers["of"](x)


class OfFeatures(nn.Cell):
    """In a list, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [nn.Dense(6, 6), nn.Dense(6, 1)]

    def construct(self, x: Any) -> Any:
        return self.parts[1](ops.relu(self.parts[0](x)))


def trained_by_hand(net: Any) -> list[Any]:
    """The program asks for its gradients, and moves it itself."""
    return [p for layer in net.layers for p in layer.get_parameters()]


def unheld(
    out: Path, net: Any, *, also: Callable[[Any], list[Any]] = lambda net: [], **options: Any
) -> list[tuple[str, str, str | None]]:
    ms.set_seed(1)
    optimizer = nn.Adam(net.trainable_params(), 1e-2)
    draw, more = np.random.default_rng(0), also(net)
    for number, parameter in enumerate(more):
        parameter.name = f"more{number}"
    n = len(optimizer.parameters)
    gradient = ms.value_and_grad(lambda x: ((net(x) - 1.0) ** 2).mean(), None, [*optimizer.parameters, *more])
    with hypocenter.watch(net, out=str(out), **options):
        for _ in range(12):
            _, given = gradient(Tensor(draw.normal(size=(8, 6)), ms.float32))
            for parameter, each in zip(more, given[n:], strict=True):
                ops.assign_sub(parameter, 0.01 * each)
            optimizer(given[:n])
    return [(f.code, f.severity, f.site) for f in diagnose(open_run(out)).findings if f.severity != "note"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "site"),
    [
        (Listed, "layers[0].weight"),
        pytest.param(Tabled, "shifts['a']", marks=pytest.mark.queues),
        (Anew, "scale"),
        (LayerAnew, "extra.bias"),
    ],
)
def test_hc233_what_no_optimizer_can_hold(make: Callable[[], Any], site: str, tmp_path: Path) -> None:
    assert unheld(tmp_path / "run", make()) == [("HC233", "warning", site)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (Layers, {}),
        (lambda: Listed(1), {}),  # to hide it
        (MadeOnce, {}),
        (Counted, {}),
        (Copies, {}),
        (Features, {}),
        (Listed, {"also": trained_by_hand}),
    ],
    ids=["plain", "hidden", "made once", "counted", "copies", "features", "by hand"],
)
def test_what_is_left_out_on_purpose(make: Callable[[], Any], options: Any, tmp_path: Path) -> None:
    assert unheld(tmp_path / "run", make(), **options) == []
