"""tap.mindspore.cells: what every call took and gave, with gradients, and training left as it is to the bit."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from hypocenter.nouns import Reading
from hypocenter.summary.reducers.numpy import summarize

sys.path.insert(0, str(Path(__file__).parent))
from gpt_like import Net, WithLoss, batches, seeded, tapped, values_of  # isort: skip


def steps(cell: nn.Cell, optimizer: Any, data: list[Any], tap: Any = None, clock: Any = None) -> list[list[Reading]]:
    """Train; with a tap the readings of each step."""
    grad = ms.value_and_grad(cell, None, list(optimizer.parameters))
    rows = []
    for batch in data:
        if tap is not None:
            tap.enabled = clock.recording = True
        _, gradients = grad(*batch)
        if tap is not None:
            clock.recording = False
            clock.end_microbatch()
            rows.append(tap.collect(clock.begin_update(id(optimizer))))
        optimizer(gradients)
        if tap is not None:
            clock.end_update()
    return rows


def one(rows: list[Reading], site: str, port: str, call: int = 0) -> Reading:
    found = [r for r in rows if (r.site, r.port, r.call) == (site, port, call)]
    assert len(found) == 1, (site, port, call, found)
    return found[0]


def test_every_call_of_every_cell_is_read_in_order() -> None:
    model = seeded(lambda: WithLoss(Net()))
    optimizer = nn.Adam(model.trainable_params())

    with tapped(model) as (tap, clock, names):
        first, second = steps(model, optimizer, batches(2), tap, clock)

    called = {name for name, cell in names.cells() if not isinstance(cell, nn.CellList)}
    assert {r.site for r in first} == called
    assert [r.order for r in first] == sorted(r.order for r in first)
    assert [r.order for r in first] == [r.order for r in second]
    assert {r.step for r in second} == {1}
    qkv = one(first, "net.blocks.0.attention.qkv", "out[0]")
    assert (qkv.phase, qkv.module, qkv.dtype, qkv.shape) == ("forward", "Dense", "float32", (2, 6, 48))
    assert one(first, "net.blocks.0.attention", "out[1][cache][1]").shape == (2, 6, 16)
    assert one(first, "net.embedding", "in[0]").dtype == "int32"
    shared = [r for r in first if r.module == "Tanh" and r.phase == "forward" and r.port == "out[0]"]
    assert [(r.site, r.call) for r in shared] == [("net.blocks.0.shared", n) for n in range(4)]
    assert shared[0].names == ("net.blocks.0.shared", "net.blocks.1.shared")


def test_gradients_are_those_that_grad_gives() -> None:
    model = seeded(lambda: WithLoss(Net()))
    ids, targets = batches(1)[0]

    def upstream(hidden: Tensor) -> Tensor:
        logits = model.net.head(hidden)
        return model.loss(logits.reshape(-1, 50), targets.reshape(-1))

    with tapped(model) as (tap, clock, _):
        kept: dict[str, np.ndarray] = {}

        class Keeper:
            def keep(self, site: Any, port: str, call: int, microbatch: int, tensor: Tensor) -> None:
                kept[f"{site.name} {port} {call}"] = tensor.asnumpy().copy()

        tap.keeper = Keeper()
        tap.enabled = clock.recording = True
        ms.value_and_grad(model, None, model.trainable_params())(ids, targets)
        rows = tap.collect(0)
    expected = ms.grad(upstream)(Tensor(kept["net.norm out[0] 0"])).asnumpy()

    assert one(rows, "net.norm", "grad_out[0]").phase == "backward"
    assert one(rows, "net.norm", "grad_out[0]").summary == one(rows, "net.head", "grad_in[0]").summary
    assert np.allclose(kept["net.norm grad_out[0] 0"], expected, rtol=1e-5, atol=1e-8)
    for name, array in kept.items():
        site, port, call = name.split(" ")
        assert one(rows, site, port, int(call)).summary == summarize(array), name


VARIANTS: dict[str, Callable[[], nn.Cell]] = {}


def variant(make: Callable[[], nn.Cell]) -> Callable[[], nn.Cell]:
    VARIANTS[make.__name__] = make
    return make


@variant
def plain() -> nn.Cell:
    return WithLoss(Net())


@variant
def recomputed() -> nn.Cell:
    model = WithLoss(Net())
    for block in model.net.blocks:
        block.recompute()
    return model


@variant
def half() -> nn.Cell:
    model = WithLoss(Net())
    model.net.to_float(ms.float16)
    return model


@variant
def writes_in_place() -> nn.Cell:
    class InPlace(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Dense(16, 16), nn.Dense(16, 16)

        def construct(self, x: Tensor) -> Tensor:
            y = self.first(x)
            y.add_(1.0)
            y = self.second(y)
            y[0] = 0.5
            y.mul_(2.0)
            return y

    model = WithLoss(Net())
    model.net.blocks[0].mlp = InPlace()
    return model


@variant
def gives_its_input_back() -> nn.Cell:
    class Same(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            return x

    model = WithLoss(Net())
    model.net.blocks[1].shared = nn.SequentialCell(Same(), Same(), nn.Dropout(p=0.0))
    return model


@variant
def with_a_backward_of_its_own() -> nn.Cell:
    class Clipped(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            return x.clip(-1.0, 1.0)

        def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
            return (dout * 0.5,)

    model = WithLoss(Net())
    model.net.blocks[1].shared = Clipped()
    return model


@variant
def compiled_inside() -> nn.Cell:
    class Compiled(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Dense(16, 16)

        @ms.jit
        def construct(self, x: Tensor) -> Tensor:
            return self.dense(x) * 2

    model = WithLoss(Net())
    model.net.blocks[0].mlp = Compiled()
    return model


@variant
def dropping_out() -> nn.Cell:
    model = WithLoss(Net())
    model.net.blocks[0].mlp = nn.SequentialCell(nn.Dense(16, 16), nn.Dropout(p=0.3))
    return model


QUEUED = ("dropping_out", "recomputed", "with_a_backward_of_its_own")  # draws, and Python that the backward calls
BY_NIGHT = ("plain", "gives_its_input_back")  # other variants have all of them but one cell
CASES = [
    *(pytest.param(name, marks=[pytest.mark.night] * (name in BY_NIGHT)) for name in sorted(VARIANTS)),
    *(pytest.param(name, marks=[pytest.mark.queues, pytest.mark.night], id=f"{name}-queued") for name in QUEUED),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_training_is_the_same_to_the_bit(name: str) -> None:
    def trained(with_tap: bool) -> tuple[list[np.ndarray], list[list[Reading]]]:
        ms.set_seed(3)
        model = seeded(VARIANTS[name])
        model.set_train()
        optimizer = nn.AdamWeightDecay(model.trainable_params(), 0.01, weight_decay=0.1)
        rows: list[list[Reading]] = []
        if with_tap:
            warnings: list[str] = []
            with tapped(model, warnings, sketch=True) as (tap, clock, _):
                rows = steps(model, optimizer, batches(2), tap, clock)
            assert not warnings
        else:
            steps(model, optimizer, batches(2))
        return values_of(optimizer.parameters), rows

    without, _ = trained(False)
    with_it, rows = trained(True)

    assert all(np.array_equal(a, b) for a, b in zip(without, with_it, strict=True))
    assert all(any(r.phase == "backward" for r in step) for step in rows)
    assert len({len(step) for step in rows}) == 1


def test_a_recompute_is_told_from_the_forward() -> None:
    model = seeded(VARIANTS["recomputed"])
    optimizer = nn.SGD(model.trainable_params(), 0.1)

    with tapped(model) as (tap, clock, _):
        rows = steps(model, optimizer, batches(1), tap, clock)[0]

    inner = [r for r in rows if r.site == "net.blocks.0.attention.qkv" and r.port == "out[0]"]
    assert [(r.recompute, r.phase, r.call) for r in inner] == [(False, "forward", 0), (True, "forward", 0)]
    assert inner[0].summary == inner[1].summary
    assert one(rows, "net.blocks.0.attention.qkv", "grad_out[0]").summary.absmax > 0


def test_what_is_written_in_place_is_read_before_and_after() -> None:
    class InPlace(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Identity(), nn.Identity()

        def construct(self, x: Tensor) -> Tensor:
            y = self.first(x * 2.0)
            y[0] = 3.0  # `add_` and its like change nothing on the CPU (MindSpore 2.10)
            return self.second(y).sum()

    for shape in ((4,), (50, 60)):
        model = InPlace()
        with tapped(model) as (tap, clock, _):
            tap.enabled = clock.recording = True
            ms.grad(model)(Tensor(np.ones(shape, np.float32)))
            rows = tap.collect(0)

        assert one(rows, "first", "out[0]").summary.max == 2.0
        assert one(rows, "second", "in[0]").summary.max == 3.0


def test_sites_and_exclusions_choose() -> None:
    model = seeded(lambda: WithLoss(Net()))
    optimizer = nn.SGD(model.trainable_params(), 0.1)

    with tapped(model, sites=("net.blocks.*",), exclude=("*.mlp*",)) as (tap, clock, _):
        rows = steps(model, optimizer, batches(1), tap, clock)[0]

    sites = {r.site for r in rows}
    assert sites
    assert all(site.startswith("net.blocks.") and ".mlp" not in site for site in sites)


def test_an_error_in_a_cell_leaves_the_tap_ready() -> None:
    class Raising(nn.Cell):
        def construct(self, x: Tensor, fails: bool) -> Tensor:
            if fails:
                raise ValueError("no")
            return x * 2

    model = Raising()
    with tapped(model) as (tap, clock, _):
        tap.enabled = clock.recording = True
        with pytest.raises(ValueError, match="no"):
            model(Tensor(np.ones(3, np.float32)), True)
        model(Tensor(np.ones(3, np.float32)), False)
        rows = tap.collect(0)

    assert [(r.port, r.call) for r in rows] == [("in[0]", 0), ("in[0]", 1), ("out[0]", 1)]


def test_a_failing_reducer_switches_it_off_and_training_goes_on() -> None:
    model = seeded(lambda: WithLoss(Net()))
    optimizer = nn.SGD(model.trainable_params(), 0.1)
    warnings: list[str] = []

    with tapped(model, warnings) as (tap, clock, _):

        def fails(*_: object) -> int:
            raise RuntimeError("broken")

        tap._reducer.add = fails
        tap.enabled = clock.recording = True
        ms.value_and_grad(model, None, optimizer.parameters)(*batches(1)[0])

    assert len(warnings) == 1
    assert "broken" in warnings[0]
    assert not tap.enabled


def test_no_hook_is_left_on_an_input_that_is_used_again() -> None:
    model = nn.Dense(3, 3)
    x = Tensor(np.ones((2, 3), np.float32))
    counts = []

    with tapped(model) as (tap, clock, _):
        for _step in range(3):
            tap.enabled = clock.recording = True
            ms.grad(lambda t: model(t).sum())(x)
            counts.append(sum(r.port == "grad_in[0]" for r in tap.collect(0)))
            tap.forget()

    assert counts == [1, 1, 1]


def test_outside_training_nothing_is_read() -> None:
    model = nn.Dense(3, 3)
    with tapped(model) as (tap, _clock, _):
        tap.enabled = True
        model(Tensor(np.ones((2, 3), np.float32)))

        assert tap.collect(0) == []


def test_of_a_compiled_cell_the_boundary_is_read() -> None:
    model = seeded(VARIANTS["compiled_inside"])
    optimizer = nn.SGD(model.trainable_params(), 0.1)

    with tapped(model) as (tap, clock, _):
        rows = steps(model, optimizer, batches(1), tap, clock)[0]

    site = "net.blocks.0.mlp"
    assert {r.port for r in rows if r.site == site} == {"in[0]", "out[0]", "grad_in[0]", "grad_out[0]"}
    assert not [r for r in rows if r.site.startswith(f"{site}.")]
    assert one(rows, site, "grad_in[0]").summary.absmax > 0
