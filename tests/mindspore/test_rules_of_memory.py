"""Laws about memory in MindSpore: what is read was written first, what a forward was given stays until its backward."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.ops import functional_overload

sys.path.insert(0, str(Path(__file__).parent))

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run


def told(out: Path, code: str) -> list[Finding]:
    return [f for f in diagnose(open_run(out)).findings if f.code == code]


class Pool(nn.Cell):
    """A layer, then memory that `how` fills."""

    def __init__(self, how: Callable[[Any], Any]) -> None:
        super().__init__()
        self.first, self.how = nn.Dense(3, 4), how
        self.weight = Parameter(Tensor(np.ones(4, np.float32)), name="weight")

    def construct(self, x: Any) -> Any:
        return self.how(self.first(x)) * self.weight


def forgets_the_last_row(x: Any) -> Any:
    memory = mint.empty((x.shape[0] + 1, x.shape[1]))
    memory[:-2] = x[:-1]
    memory[-1] = 0.0
    return x + memory[1:] * 0.5


def adds_what_was_there(x: Any) -> Any:
    return mint.empty_like(x) * 0.0 + x


def of_a_tensor(x: Any) -> Any:
    spare = [x.new_empty((3,)) for _ in range(5)]  # nobody reads these
    return x + x.new_empty(x.shape) if len(spare) == 5 else x


def an_index_of_it(x: Any) -> Any:
    return x + x[mint.empty((1,)).astype(ms.int32) * 0].sum()


def writes_all(x: Any) -> Any:
    memory = mint.empty_like(x)
    memory[:] = x
    return memory * 2


def masks_it(x: Any) -> Any:
    memory = mint.empty(x.shape)
    memory[:2] = x[:2]
    return ops.where(ops.arange(x.shape[0])[:, None] < 2, memory, x)


def asks_for_none(x: Any) -> Any:
    return x * 2


UNWRITTEN: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a row is forgotten": (forgets_the_last_row, "Muls"),
    "made like another": (adds_what_was_there, "Muls"),
    "made of a tensor": (of_a_tensor, "AddExt"),
    "an index": (an_index_of_it, "Cast"),
}
WRITTEN = {"all is written": writes_all, "masked": masks_it, "none": asks_for_none}


def pooled(out: Path, how: Callable[[Any], Any], n_steps: int = 4, **options: Any) -> list[np.ndarray]:
    ms.set_seed(1)
    net = Pool(how)
    optimizer = nn.SGD(net.trainable_params(), 1e-2)
    gradient = ms.value_and_grad(lambda x: (net(x) ** 2).mean(), None, optimizer.parameters)
    with hypocenter.watch(net, out=str(out), **options):
        for step in range(n_steps):
            optimizer(gradient(Tensor(np.random.default_rng(step).normal(size=(5, 3)), ms.float32))[1])
    return [p.asnumpy().copy() for p in net.get_parameters()]


@pytest.fixture
def zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an allocator mostly gives, where the law has not filled it."""

    def zeroed(make: Callable[..., Any]) -> Callable[..., Any]:
        def fresh(*args: Any, **kwargs: Any) -> Any:
            made = make(*args, **kwargs)
            if not np.isnan(made.asnumpy()).all():
                ctypes.memset(made.untyped_storage().data_ptr(), 0, made.nbytes)
            return made

        return fresh

    for owner, name in (
        (functional_overload, "_empty_instance"),
        (functional_overload, "_empty_like_instance"),
        (Tensor, "new_empty"),
    ):
        monkeypatch.setattr(owner, name, zeroed(getattr(owner, name)))


@pytest.mark.usefixtures("zeros")
@pytest.mark.parametrize("name", UNWRITTEN)
def test_hc234_memory_that_nobody_has_written_is_read(name: str, tmp_path: Path) -> None:
    how, op = UNWRITTEN[name]
    pooled(tmp_path / "run", how)

    (found,) = told(tmp_path / "run", "HC234")
    assert (found.step, found.op, found.severity) == (0, op, "error")
    assert found.source is not None
    assert found.source.function == how.__name__


@pytest.mark.usefixtures("zeros")
@pytest.mark.parametrize("name", WRITTEN)
def test_memory_that_is_written_first_is_no_fault(name: str, tmp_path: Path) -> None:
    watched = pooled(tmp_path / "run", WRITTEN[name], audit="every=1")
    plain = pooled(tmp_path / "plain", WRITTEN[name], audit="never")

    assert not told(tmp_path / "run", "HC234")
    assert all(np.array_equal(a, b) for a, b in zip(watched, plain, strict=True))


N_STEPS, FROM = 10, 8


class Layers(nn.Cell):
    """Two layers; `first` is done to the inputs, `then` told of the hidden values."""

    def __init__(self, first: Callable[[Any], Any], then: Callable[[Any], None]) -> None:
        super().__init__()
        self.up, self.head, self.first, self.then = nn.Dense(6, 8), nn.Dense(8, 3), first, then

    def construct(self, x: Any) -> Any:
        hidden = ops.relu(self.up(self.first(x)))
        self.then(hidden)
        return self.head(hidden)


class Buffers:
    """Inputs and labels that share their memory with tensors, and are written over while backward runs, or later."""

    def __init__(self) -> None:
        self.inputs, self.labels = np.zeros((8, 6), np.float32), np.zeros((8,), np.int32)
        self.x, self.y = Tensor.from_numpy(self.inputs), Tensor.from_numpy(self.labels)
        self.draw = np.random.default_rng(0)

    def fill(self) -> None:
        self.inputs[:], self.labels[:] = self.draw.normal(size=(8, 6)), self.draw.integers(0, 3, 8)

    def train(
        self, out: Path, write: Callable[[Buffers], None], *, first: Callable[[Any], Any] = lambda x: x,
        is_late: bool = False,
    ) -> list[tuple[str, str | None, int]]:  # fmt: skip
        """What is said of inputs that changed."""
        ms.set_seed(1)
        steps = list[int]()

        def in_backward(gradient: Any) -> Any:
            if len(steps) >= FROM and not is_late:
                write(self)
            return gradient

        def then(hidden: Any) -> None:
            hidden.register_hook(in_backward)

        net = Layers(first, then)
        optimizer = nn.SGD(net.trainable_params(), 1e-2)
        gradient = ms.value_and_grad(lambda x, y: ops.cross_entropy(net(x), y), None, optimizer.parameters)
        with hypocenter.watch(net, out=str(out), audit="never"):
            for step in range(N_STEPS):
                self.fill()
                _, given = gradient(self.x, self.y)
                if step >= FROM and is_late:
                    write(self)
                optimizer(given)
                steps.append(step)
        return [(f.severity, f.site, f.step) for f in told(out, "HC264")]


def into_inputs(buffers: Buffers) -> None:
    buffers.inputs[:] = 1.0


def into_labels(buffers: Buffers) -> None:
    buffers.labels[:] = (buffers.labels + 1) % 3


def scaled_in_place(x: Any) -> Any:
    """By the program itself, before it is used."""
    x.asnumpy()[:] *= 0.5
    return x


@pytest.mark.parametrize("queues", [False, pytest.param(True, marks=[pytest.mark.queues, pytest.mark.slow])])
def test_hc264_an_input_that_is_written_over_before_its_backward(queues: bool, tmp_path: Path) -> None:
    assert Buffers().train(tmp_path / "run", into_inputs) == [("warning", "batch[0]", FROM)]


@pytest.mark.parametrize(
    ("write", "options"),
    [
        (into_inputs, {"is_late": True}),  # backward is over
        (into_inputs, {"first": ops.tanh}),  # whose backward uses what it has made
        (lambda buffers: None, {"first": scaled_in_place}),
    ],
    ids=["late", "not needed", "by forward itself"],
)
def test_what_no_backward_needs_any_more(write: Callable[[Buffers], None], options: Any, tmp_path: Path) -> None:
    assert Buffers().train(tmp_path / "run", write, **options) == []
