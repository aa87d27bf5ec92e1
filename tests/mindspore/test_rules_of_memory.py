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
