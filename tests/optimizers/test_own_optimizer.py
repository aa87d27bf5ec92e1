"""An optimizer of one's own, registered by a file of one's own, is done again like the others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from hypocenter.catalogue import import_plugin
from hypocenter.compare.updates.effective import effective
from hypocenter.compare.updates.recompute import row_of
from hypocenter.optimizers.rule import RULES

sys.path.insert(0, str(Path(__file__).parents[1] / "compare/updates"))
from stepped import stepped

PLUGIN = """
from dataclasses import dataclass
from hypocenter.optimizers.options import Options, option
from hypocenter.optimizers.rule import optimizer

@dataclass(frozen=True, slots=True, kw_only=True)
class SoftSignOptions(Options):
    factor: float = option(0.9, "factor of the mean", must_be_told=True)

@optimizer("softsign", classes=("SoftSign",), options=SoftSignOptions, states={"mean": ()})
class SoftSign:
    @staticmethod
    def remember(gradient, state, options):
        return {"mean": options.factor * state.get("mean", 0.0) + (1 - options.factor) * gradient}

    @staticmethod
    def direction(gradient, state, options):
        return state["mean"] / (abs(state["mean"]) + 1.0)
"""


class SoftSign(torch.optim.Optimizer):
    """The program's own, in float32."""

    def __init__(self, params: list[torch.Tensor], lr: float = 0.1, factor: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "factor": factor})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                mean = state.setdefault("mean", torch.zeros_like(weight))
                mean.mul_(group["factor"]).add_(weight.grad, alpha=1 - group["factor"])
                weight.sub_(group["lr"] * mean / (mean.abs() + 1.0))


@pytest.fixture(autouse=True)
def _plugin(tmp_path: Path) -> None:
    if "softsign" not in RULES.entries():
        file = tmp_path / "softsign.py"
        file.write_text(PLUGIN)
        import_plugin(str(file))


def test_it_is_done_again() -> None:
    row = row_of(stepped(SoftSign, steps=3))

    assert (row.verdict, row.worst_port in ("value", "mean")) == ("as-stated", True)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "really"), [("lr", 0.2), ("factor", 0.7)])
def test_what_it_does_otherwise_than_it_states_is_named_and_measured(name: str, really: float) -> None:
    row = row_of(stepped(lambda ps: SoftSign(ps, **{name: really}), steps=3, states={"lr": 0.1, "factor": 0.9}))

    found = effective(row)

    assert row.verdict == "differs"
    assert found.changes[name][1] == pytest.approx(really)
