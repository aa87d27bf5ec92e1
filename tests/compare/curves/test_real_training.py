"""Small real trainings: repeats differ by the order of summation only, candidates by a planted bug or not at all."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import pytest
from made_curves import noise

from hypocenter.compare.curves.catalogue import read_curve
from hypocenter.compare.curves.compare import compare_curves
from hypocenter.compare.curves.comparison import CurveComparison
from hypocenter.compare.curves.curve import Curve

torch = pytest.importorskip("torch")
STEPS = 500
REPEATS = (1, 2)


@cache
def train(
    order: int, *, weight_decay: float = 0.1, eps: float = 1e-8, lr: float = 3e-3, change_at: int = -1, half: int = -1
) -> tuple[tuple[int, float, float, float], ...]:
    """(step, loss, grad norm, lr) of a two-layer character model. `order` permutes the samples within each batch."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Embedding(48, 32),
        torch.nn.Flatten(),
        torch.nn.Linear(96, 64),
        torch.nn.GELU(),
        torch.nn.Linear(64, 48),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay, eps=eps)
    batches = torch.Generator().manual_seed(7)
    shuffle = torch.Generator().manual_seed(order)
    table = torch.randint(0, 48, (48, 48), generator=torch.Generator().manual_seed(5))
    rows = []
    for step in range(STEPS):
        x = torch.randint(0, 48, (64, 3), generator=batches)[torch.randperm(64, generator=shuffle)]
        y = table[x[:, 0], x[:, 2]]
        if step == change_at:
            optimizer.param_groups[0]["weight_decay"] = 5.0
        optimizer.zero_grad()
        logits = model(x)
        loss = torch.nn.functional.cross_entropy(logits.bfloat16().float() if order else logits, y)
        if 0 <= half <= step:
            loss = loss * 0.5
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        optimizer.step()
        rows.append((step, loss.item(), norm.item(), lr))
    return tuple(rows)


def logged(folder: Path, name: str, rows: tuple[tuple[int, float, float, float], ...]) -> Curve:
    path = folder / f"{name}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("step", "loss", "grad_norm", "lr"), *rows])
    return read_curve(path)


def against(
    folder: Path, rows: tuple[tuple[int, float, float, float], ...], *, repeats: bool = True
) -> CurveComparison:
    noisy = [logged(folder, f"noise-{n}", train(n)) for n in REPEATS] if repeats else []
    return compare_curves(logged(folder, "base", train(0)), logged(folder, "candidate", rows), noisy)


@pytest.mark.night
@pytest.mark.slow
@pytest.mark.parametrize("order", [3, 4, 5, 6])
def test_another_order_of_summation_is_within_the_noise(tmp_path: Path, order: int) -> None:
    assert against(tmp_path, train(order)).status == "accepted"
    assert against(tmp_path, train(order), repeats=False).status == "accepted"


def test_weight_decay_changed_at_a_step_is_found_soon_after(tmp_path: Path) -> None:
    found = against(tmp_path, train(3, change_at=250))

    assert found.status == "departed"
    assert found.departure is not None
    assert 250 <= found.departure.step <= 300


def test_a_loss_halved_at_a_step_is_found_there(tmp_path: Path) -> None:
    found = against(tmp_path, train(3, half=300))

    assert found.status == "departed"
    assert found.departure is not None
    assert abs(found.departure.step - 300) <= 5


def test_a_large_eps_is_found_from_the_start(tmp_path: Path) -> None:
    found = against(tmp_path, train(3, eps=1e-2))

    assert found.status == "departed"
    assert found.departure is not None
    assert found.departure.step <= 20


def test_another_learning_rate_is_proof(tmp_path: Path) -> None:
    found = against(tmp_path, train(3, lr=6e-3))

    assert (found.status, found.confidence) == ("departed", "proven")
    assert "2 times the baseline's" in found.sentence


def test_at_learning_rate_0_the_strict_limits_hold(tmp_path: Path) -> None:
    base, other = logged(tmp_path, "a", train(0, lr=0.0)), logged(tmp_path, "b", train(3, lr=0.0))
    found = compare_curves(base, other)

    assert {check.name: check.status for check in found.checks}["frozen-loss"] == "pass"
    assert {check.name: check.status for check in found.checks}["frozen-grad-norm"] == "pass"
    assert found.status == "accepted"


def test_noise_of_the_helpers_is_stationary() -> None:
    rows = noise(0, 400, 50, 0.9, 2.0)

    assert rows[:, 0].std() == pytest.approx(2.0, rel=0.15)
    assert rows[:, -1].std() == pytest.approx(2.0, rel=0.15)
