"""Whole runs in which a function leaves its domain, a parameter is bad, or values run away: what is said of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run

BAD_STEP = 3


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


class Net(nn.Module):
    """A linear layer, whose result a function of `gain` is made with; 16 features, batches of 8."""

    def __init__(self, use: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.fc, self.use = nn.Linear(4, 16), use
        self.gain = nn.Parameter(torch.full((16,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.use(self.fc(x).tanh(), self.gain)


def first_finding(
    out: Path, model: nn.Module, *, spoil: Callable[[nn.Module], None] = lambda _: None, lr: float = 0.0,
    n_steps: int = 5, batch: Callable[[int], torch.Tensor] = lambda _: torch.randn(8, 4),
) -> Finding:  # fmt: skip
    """Trains; `spoil` is done to the model before BAD_STEP."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with hypocenter.watch(model, optimizer, out=str(out)):
        for step in range(n_steps):
            if step == BAD_STEP:
                spoil(model)
            loss = model(batch(step)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return diagnose(open_run(out)).findings[0]


def set_gain(value: float, at: int = 5) -> Callable[[nn.Module], None]:
    def spoil(model: nn.Module) -> None:
        with torch.no_grad():
            model.gain[at] = value

    return spoil


OF_A_PARAMETER = {
    "sqrt": (lambda h, g: h * torch.sqrt(g), -0.25, "the square root of a negative number"),
    "rsqrt": (lambda h, g: h * torch.rsqrt(g), -0.25, "the reciprocal square root of a negative number"),
    "log": (lambda h, g: h * torch.log(g), -0.25, "the logarithm of a negative number"),
    "log1p": (lambda h, g: h * torch.log1p(g), -1.5, "log1p of a number below -1"),
    "acos": (lambda h, g: h * torch.acos(g), 1.0000002, "acos of a number beyond ±1"),
    "atanh": (lambda h, g: h * torch.atanh(g), -1.5, "atanh of a number beyond ±1"),
    "power": (lambda h, g: h * g**0.3, -0.25, "the power of a negative number with an exponent that is not whole"),
    "in place": (lambda h, g: h * g.clone().sqrt_(), -0.25, "the square root of a negative number"),
}


@pytest.mark.parametrize("name", OF_A_PARAMETER)
def test_the_parameter_and_its_index_are_named_and_no_sample(tmp_path: Path, name: str) -> None:
    use, value, title = OF_A_PARAMETER[name]

    found = first_finding(tmp_path / "run", Net(use), spoil=set_gain(value))

    assert (found.step, found.cause, found.confidence) == (BAD_STEP, "out-of-domain", "proven")
    assert found.title.startswith(title)
    assert found.actual == pytest.approx(value)
    assert found.samples == ()
    assert any("1 of 16 elements" in line and line.endswith("at [5]") for line in found.why)
    if name != "in place":
        assert found.title.endswith("in parameter gain")


def test_of_a_value_computed_from_a_sample_the_row_is_named(tmp_path: Path) -> None:
    def batch(step: int) -> torch.Tensor:
        x = torch.rand(8, 4) + 0.5
        x[6, 1] = -0.5 if step == BAD_STEP else 1.0
        return x

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(torch.sqrt(x * 2.0))

    found = first_finding(tmp_path / "run", Root(), batch=batch)

    assert (found.cause, found.samples) == ("out-of-domain", (6,))
    assert found.remedy is not None
    assert (found.remedy.text, found.remedy.targets, found.remedy.verified) == ("leave out batch row 6", ("6",), True)


@pytest.mark.slow
@pytest.mark.parametrize("size", [8, 16, 24])
def test_rows_are_not_read_off_a_dimension_that_happens_to_fit(tmp_path: Path, size: int) -> None:
    """A statistic over the batch, of as many channels as the batch has rows, or a multiple of it."""

    class Statistic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, size)
            self.shift = nn.Parameter(torch.zeros(size))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.fc(x).tanh()
            return h * torch.sqrt(h.square().mean(0) + self.shift)

    def spoil(model: nn.Module) -> None:
        with torch.no_grad():
            model.shift[3] = -50.0

    found = first_finding(tmp_path / "run", Statistic(), spoil=spoil)

    assert (found.cause, found.samples) == ("out-of-domain", ())


def test_a_running_variance_below_zero_is_named(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)).eval()

    def spoil(model: nn.Module) -> None:
        model[1].running_var[2] = -0.5

    found = first_finding(tmp_path / "run", model, spoil=spoil)

    assert (found.cause, found.samples) == ("out-of-domain", ())
    assert "negative running variance" in found.title


@pytest.mark.slow
@pytest.mark.parametrize("width", [8, 32])
def test_a_learning_rate_that_is_too_high_is_no_matter_of_samples(tmp_path: Path, width: int) -> None:
    model = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    found = first_finding(tmp_path / "run", model, lr=5.0, n_steps=30, batch=lambda _: torch.randn(32, 8) * 3.0)

    assert found.samples == ()
    assert found.remedy is not None
    assert found.remedy.action != "drop-samples"
    assert "learning rate" in found.remedy.text
    assert any("the loss had grown" in line for line in found.why)


HIDDEN_LOGARITHMS = {
    "relu": lambda h, g: h + torch.relu(torch.log(g)),
    "exp": lambda h, g: h + torch.exp(torch.log(g)),
    "log2": lambda h, g: h + torch.relu(torch.log2(g)),
    "clamp": lambda h, g: h + torch.log(g).clamp(min=-2.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HIDDEN_LOGARITHMS)
def test_a_logarithm_of_0_that_forward_hides_is_named_in_backward(tmp_path: Path, name: str) -> None:
    found = first_finding(tmp_path / "run", Net(HIDDEN_LOGARITHMS[name]), spoil=set_gain(0.0))

    assert (found.step, found.code) == (BAD_STEP, "HC101")
    assert found.cause in ("log-of-zero", "masked-gradient-trap")
    assert found.confidence == "proven"
    assert found.samples == ()


def test_the_gradient_to_an_exponent_needs_the_logarithm_of_its_base(tmp_path: Path) -> None:
    class Power(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.exponent = nn.Linear(4, 16), nn.Parameter(torch.full((16,), 2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x).abs().add(1.0).neg().pow(self.exponent)

    found = first_finding(tmp_path / "run", Power())

    assert (found.step, found.code, found.cause, found.confidence) == (0, "HC101", "out-of-domain", "proven")
    assert found.title == "the gradient of the power needs the logarithm of a negative number"
