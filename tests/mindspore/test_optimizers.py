"""State and options of MindSpore's optimizers: with them compare.updates makes every step again in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore import Tensor, nn
from mindspore.experimental import optim

from hypocenter.compare.updates.recompute import row_of
from hypocenter.compare.updates.recorded import ParameterUpdate, _read
from hypocenter.config import Config
from hypocenter.session.mindspore.levels import UpdateTensors
from hypocenter.tap.mindspore.names import NameMap

OPTIMIZERS: dict[str, Callable[[list[Any]], Any]] = {
    "Adam": lambda p: nn.Adam(p, 0.01, eps=1e-4, weight_decay=0.02),
    "Adam with amsgrad": lambda p: nn.Adam(p, 0.01, use_amsgrad=True),
    "Adam with a loss scale": lambda p: nn.Adam(p, 0.01, weight_decay=0.02, loss_scale=1024.0),
    "Adam with a schedule": lambda p: nn.Adam(p, nn.CosineDecayLR(0.001, 0.01, 5)),
    "Adam with a list of rates": lambda p: nn.Adam(p, [0.01, 0.02, 0.03]),
    "Adam with groups": lambda p: nn.Adam(
        [{"params": p[:1], "weight_decay": 0.1, "lr": 0.02}, {"params": p[1:]}], 0.01
    ),
    "AdamWeightDecay": lambda p: nn.AdamWeightDecay(p, 0.01, weight_decay=0.1),
    "Momentum": lambda p: nn.Momentum(p, 0.1, 0.9, weight_decay=0.01),
    "SGD": lambda p: nn.SGD(p, 0.1),
    "SGD with momentum": lambda p: nn.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "SGD with dampening": lambda p: nn.SGD(p, 0.1, momentum=0.9, dampening=0.5),
    "SGD of Nesterov": lambda p: nn.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "Adagrad": lambda p: nn.Adagrad(p, learning_rate=0.1),
    "experimental Adam": lambda p: optim.Adam(p, lr=0.01, weight_decay=0.1, eps=1e-4),
    "experimental AdamW": lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "experimental SGD": lambda p: optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.1),
    "experimental Adagrad": lambda p: optim.Adagrad(p, lr=0.01),
}


def updates(make: Callable[[list[Any]], Any], folder: Path, n_steps: int = 3, **options: Any) -> list[ParameterUpdate]:
    rng = np.random.default_rng(0)
    net = nn.SequentialCell(nn.Dense(20, 30), nn.LayerNorm((30,)), nn.Dense(30, 5))
    names = NameMap()
    names.add_root(net)
    optimizer = make(net.trainable_params())
    warnings: list[str] = []
    keeper = UpdateTensors(Config(level="tensors", **options), names, lambda: folder, warnings.append, 1 << 30)
    for step in range(n_steps):
        gradients = tuple(Tensor((rng.normal(size=p.shape) * 0.1).astype(np.float32)) for p in optimizer.parameters)
        keeper.before(optimizer, list(zip(optimizer.parameters, gradients, strict=True)), step)
        optimizer(gradients)
        keeper.after(optimizer)
    assert not warnings
    files = sorted((folder / "tensors").glob("step-*/update-0.safetensors"))
    return [update for step, path in enumerate(files) for update in _read(path, step, 0)]


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_step_follows_from_what_is_recorded(name: str, tmp_path: Path) -> None:
    rows = [row_of(update) for update in updates(OPTIMIZERS[name], tmp_path)]

    assert {row.step for row in rows} == {0, 1, 2}
    assert len({row.name for row in rows}) == 6
    assert {(row.verdict, row.why) for row in rows} == {("as-stated", "")}
    assert all(row.update_norm > 0 for row in rows)


def test_an_optimizer_that_does_not_do_what_it_says_is_seen(tmp_path: Path) -> None:
    class Hidden(nn.Adam):
        def construct(self, gradients: tuple[Tensor, ...]) -> Any:
            return super().construct(tuple(gradient * 0.5 for gradient in gradients))

    rows = [row_of(update) for update in updates(lambda p: Hidden(p, 0.01), tmp_path)]

    assert {row.verdict for row in rows} == {"differs"}


def test_only_the_sites_that_were_asked_for_are_kept(tmp_path: Path) -> None:
    held = updates(OPTIMIZERS["Adam"], tmp_path, sites=("1", "1.*"))

    assert {update.name for update in held} == {"1.gamma", "1.beta"}
    assert {tuple(sorted(update.state)) for update in held} == {("exp_avg", "exp_avg_sq", "step")}
    assert [float(update.state["step"].values()) for update in held if update.name == "1.beta"] == [0.0, 1.0, 2.0]
