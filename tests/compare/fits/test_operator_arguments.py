"""What functions are told inside a module's own code: two recordings, one constant apart, and the cause is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hypocenter
from hypocenter.compare.comparison import Comparison
from hypocenter.compare.engine import compare_runs
from hypocenter.record.reader import open_run

WIDTH = 16
Function = Callable[[Tensor], Tensor]


class Block(nn.Module):
    """Two linear layers and, between them, a function that is no module."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.function = [function]  # in a list: no attribute that tells of it

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.function[0](self.up(x)))


def record(out: Path, function: Function, **options: object) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Block(torch.tanh), Block(function), nn.Linear(WIDTH, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(1)
    with hypocenter.watch(model, optimizer, out=out, sketch=True, param_schedule="every=1", **options):
        for _ in range(2):
            x, y = torch.randn(8, 5, WIDTH, generator=data), torch.randint(0, 4, (8, 5), generator=data)
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return out


def compared(folder: Path, mine: Function, other: Function, **options: object) -> Comparison:
    runs = record(folder / "a", mine, **options), record(folder / "b", other, **options)
    return compare_runs(open_run(runs[0]), open_run(runs[1]))


def attention(x: Tensor, **told: object) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x, **told)  # type: ignore[arg-type]


PAIRS: dict[str, tuple[Function, Function, str]] = {
    "gelu": (F.gelu, lambda x: F.gelu(x, approximate="tanh"), "approximate is none in the baseline and tanh in"),
    "leaky": (F.leaky_relu, lambda x: F.leaky_relu(x, 0.2), "negative_slope is 0.01 in the baseline and 0.2 in"),
    "eps": (
        lambda x: F.layer_norm(x, (WIDTH,)), lambda x: F.layer_norm(x, (WIDTH,), eps=1e-2), "eps is 1e-05 in",
    ),
    "normalize": (lambda x: F.normalize(x, eps=1e-3), lambda x: F.normalize(x, eps=3.0), "min is 0.001 in"),
    "scale": (attention, lambda x: attention(x, scale=1.0), "is 0.5 in the baseline and 1 in"),
    "causal": (attention, lambda x: attention(x, is_causal=True), "the candidate alone calls"),
    "dimension": (lambda x: x.softmax(-1), lambda x: x.softmax(1), "dim is -1 in the baseline and 1 in"),
    "times": (lambda x: x * 1.0 * 2.0, lambda x: x * 1.0 * 2.5, "other is 2.0 in the baseline and 2.5 in"),
    "other": (F.silu, F.gelu, "the baseline calls aten.silu.default"),
    "format": (
        lambda x: x.float().softmax(-1), lambda x: x.bfloat16().softmax(-1).float(), "the candidate alone calls",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_what_a_function_is_told_is_the_cause(tmp_path, name):
    mine, other, said = PAIRS[name]

    found = compared(tmp_path, mine, other, level="modules", calibrate="every=1")

    assert (found.status, found.first.site, found.first.phase) == ("diverged", "2", "forward"), found.sentence
    assert found.fit is not None
    assert found.cause in ("implementation-mismatch", "config-mismatch", "precision-mismatch")
    if found.fit.name == "operator-arguments":
        assert said in found.fit.text, found.fit.text
        assert "test_operator_arguments.py:" in found.fit.text


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"level": "ops"}, {"level": "modules", "calibrate": "0"}])
def test_exact_gelu_against_its_tanh_form_is_told_at_every_level_that_sees_operators(tmp_path, options):
    mine, other, said = PAIRS["gelu"]

    found = compared(tmp_path, mine, other, **options)

    assert (found.cause, found.fit.name, found.confidence) == (
        "implementation-mismatch", "operator-arguments", "likely",
    )  # fmt: skip
    assert said in found.why[0]


def test_an_operator_that_is_told_the_same_is_no_cause(tmp_path):
    found = compared(tmp_path, F.gelu, lambda x: F.gelu(x, approximate="none"), level="modules", calibrate="0")

    assert found.status == "same"
    assert found.fit is None


def test_code_that_differs_elsewhere_is_not_explained_by_other_modules_operators(tmp_path):
    shift = torch.full((WIDTH,), 0.1)

    found = compared(tmp_path, lambda x: x + shift, lambda x: x + 2 * shift, level="modules", calibrate="0")

    assert (found.status, found.first.site) == ("diverged", "2")
    assert found.fit.name == "operator-arguments"
    assert "the candidate alone calls aten.mul.Tensor" in found.fit.text


def test_sizes_are_not_compared(tmp_path):
    out = record(tmp_path / "a", lambda x: x.repeat(1, 2, 1)[:, :5], level="modules", calibrate="0")

    calls = [call for call in open_run(out).facts().calls if call.module == "2"]

    assert [call.op for call in calls] == ["aten.repeat.default", "aten.add.Tensor"]
    assert calls[0].constants == {}
