"""Observers hear of training, give their rows, and one that fails is taken out alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.record.reader import open_run
from hypocenter.session import observers
from hypocenter.session.check import scalar_reading
from hypocenter.session.observer import Observer

torch.set_num_threads(1)


class Told(Observer):
    """Notes what it was told, and attaches a hook of its own."""

    calls: list[str] = []  # noqa: RUF012 (one per test)

    def attach(self):
        self.calls.append("attach")
        return lambda: self.calls.append("undo")

    def before_backward(self, roots):
        self.calls.append("before_backward")

    def after_backward(self):
        self.calls.append("after_backward")

    def before_clip(self, parameters, max_norm):
        self.calls.append(f"before_clip {len(parameters)}")

    def seen_before_clip(self, parameters, check):
        self.calls.append(f"seen_before_clip {len(parameters)} {len(check.grad_norms)}")

    def before_unscale(self, unscaling):
        self.calls.append("before_unscale")

    def after_unscale(self, unscaling):
        self.calls.append(f"after_unscale {unscaling.has_overflowed}")

    def before_update(self, update):
        self.calls.append(f"before_update {update.step} {update.scaled is not None}")
        self.rows.append(scalar_reading("before", "optimizer", 1.0, update.step, 1))

    def after_update(self, update):
        self.calls.append(f"after_update {update.step} {update.skipped}")
        self.rows.append(scalar_reading("after", "optimizer", 1.0, update.step, 2))


@pytest.fixture
def only(monkeypatch):
    def use(*made):
        monkeypatch.setattr(observers, "OBSERVERS", made)
        Told.calls = []

    return use


def train(n_steps=2, *, scaled=False, unscale=False):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=scaled)
    for _ in range(n_steps):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 3)).sum()).backward()
        if unscale:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return [p.detach().clone() for p in model.parameters()]


def test_told_of_everything_in_order(tmp_path, only):
    only(Told)

    with hypocenter.watch(out=tmp_path / "run"):
        train(1)
        train(1, scaled=True, unscale=True)

    plain = ["before_backward", "after_backward", "before_update 0 False", "after_update 0 False"]
    scaled = [
        "before_backward", "after_backward", "before_unscale", "after_unscale False", "before_clip 2",
        "seen_before_clip 2 2", "before_update 1 True", "after_update 1 False",
    ]  # fmt: skip
    assert Told.calls[: 1 + len(plain)] == ["attach", *plain]
    assert Told.calls[1 + len(plain) : -1] == scaled
    assert Told.calls[-1] == "undo"


def test_what_needs_a_scaler_hears_nothing_without_one_and_what_is_not_wanted_is_not_made(tmp_path, only):
    class UnderScaler(Told):
        needs = "scaler"

    class AmongRanks(Told):
        needs = "ranks"

    class Unwanted(Told):
        @classmethod
        def is_wanted(cls, config):
            return config.calibrate != "never"

    only(UnderScaler)
    with hypocenter.watch(out=tmp_path / "scaler"):
        train(3)
        train(1, scaled=True, unscale=True)
    first = ["before_backward", "after_backward", "before_update 0 False", "after_update 0 False"]
    scaled = [
        "before_unscale",
        "after_unscale False",
        "before_clip 2",
        "seen_before_clip 2 2",
        "before_update 3 True",
        "after_update 3 False",
    ]
    assert Told.calls == ["attach", *first, *scaled, "undo"]

    only(AmongRanks, Unwanted)
    with hypocenter.watch(out=tmp_path / "neither"):
        train(2)
    assert Told.calls == ["attach", "undo"]


def test_rows_of_both_halves_of_an_update_are_recorded_at_its_step(tmp_path, only):
    only(Told)

    with hypocenter.watch(out=tmp_path / "run"):
        train(3)

    rows = open_run(tmp_path / "run").table().to_pylist()
    assert [(r["site"], r["step"]) for r in rows if r["site"] in ("before", "after")] == [
        (site, step) for step in range(3) for site in ("before", "after")
    ]


@pytest.mark.parametrize(
    "where", ["attach", "before_backward", "after_backward", "before_clip", "seen_before_clip", "before_unscale",
              "after_unscale", "before_update", "after_update"],
)  # fmt: skip
def test_one_that_fails_anywhere_is_taken_out_said_once_and_the_others_go_on(tmp_path, only, capsys, where):
    def fail(*_):
        raise ZeroDivisionError("planted")

    only(type("Broken", (Observer,), {where: fail}), Told)
    plain = train(3, scaled=True, unscale=True)

    with hypocenter.watch(out=tmp_path / "run"):
        watched = train(3, scaled=True, unscale=True)

    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert capsys.readouterr().err.count("Broken switched off after an internal error: ZeroDivisionError: planted") == 1
    assert [call for call in Told.calls if call.startswith("after_update")] == [
        f"after_update {s} False" for s in range(3)
    ]


def test_one_that_cannot_be_made_is_left_out(tmp_path, only, capsys):
    class Unmakeable(Observer):
        def __init__(self, context):
            raise KeyError("planted")

    only(Unmakeable, Told)

    with hypocenter.watch(out=tmp_path / "run"):
        train(1)

    assert "Unmakeable switched off" in capsys.readouterr().err
    assert "after_update 0 False" in Told.calls


def test_one_that_fails_later_is_detached_at_once(tmp_path, only):
    order = []

    class Late(Observer):
        def attach(self):
            return lambda: order.append("undone")

        def after_update(self, update):
            order.append(update.step)
            if update.step == 1:
                raise KeyError("planted")

    only(Late)

    with hypocenter.watch(out=tmp_path / "run"):
        train(3)
        order.append("trained")

    assert order == [0, 1, "undone", "trained"]
