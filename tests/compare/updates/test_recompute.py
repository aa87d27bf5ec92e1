"""A step of torch.optim done again in float64: within the limit, whatever the options; beyond it when one is wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.compare.updates.effective import effective
from hypocenter.compare.updates.recompute import row_of
from hypocenter.compare.updates.recorded import ParameterUpdate
from hypocenter.optimizers.rounded import ALLOWED

sys.path.insert(0, str(Path(__file__).parent))
from stepped import stepped

STATE = {"steps": st.integers(1, 4), "n": st.integers(1, 300), "seed": st.integers(0, 10**6)}
RATES = st.sampled_from((1e-5, 3e-4, 1e-3, 0.0123, 0.1))
DECAYS = st.sampled_from((0.0, 1e-3, 0.01, 0.1))
SIZES = st.sampled_from((1e-12, 1e-6, 1e-2, 1.0, 1e4))


@settings(deadline=None, max_examples=150)
@given(
    kind=st.sampled_from(("AdamW", "Adam")), lr=RATES, decay=DECAYS, eps=st.sampled_from((1e-15, 1e-8, 1e-5)),
    betas=st.sampled_from(((0.9, 0.999), (0.9, 0.95), (0.0, 0.99))), amsgrad=st.booleans(), maximize=st.booleans(),
    how=st.sampled_from(({}, {"foreach": True}, {"foreach": False}, {"fused": True})), size=SIZES, **STATE,
)  # fmt: skip
def test_adam_is_done_again(
    kind: str, lr: float, decay: float, eps: float, betas: tuple[float, float], amsgrad: bool, maximize: bool,
    how: dict[str, bool], size: float, steps: int, n: int, seed: int,
) -> None:  # fmt: skip
    given_options: dict[str, Any] = {
        "lr": lr, "weight_decay": decay, "eps": eps, "betas": betas, "amsgrad": amsgrad, "maximize": maximize, **how,
    }  # fmt: skip

    row = row_of(
        stepped(lambda ps: getattr(torch.optim, kind)(ps, **given_options), steps=steps, n=n, seed=seed, size=size)
    )

    assert row.verdict == "as-stated", (row.error_units, row.worst_port)


@settings(deadline=None, max_examples=100)
@given(
    lr=RATES, decay=DECAYS, momentum=st.sampled_from((0.0, 0.9)), dampening=st.sampled_from((0.0, 0.1)),
    nesterov=st.booleans(), maximize=st.booleans(), how=st.sampled_from(({}, {"foreach": True}, {"fused": True})),
    size=SIZES, **STATE,
)  # fmt: skip
def test_sgd_is_done_again(
    lr: float, decay: float, momentum: float, dampening: float, nesterov: bool, maximize: bool, how: dict[str, bool],
    size: float, steps: int, n: int, seed: int,
) -> None:  # fmt: skip
    given_options: dict[str, Any] = {"lr": lr, "weight_decay": decay, "momentum": momentum, "maximize": maximize, **how}
    given_options |= {"nesterov": True} if nesterov and momentum else {"dampening": dampening}

    row = row_of(stepped(lambda ps: torch.optim.SGD(ps, **given_options), steps=steps, n=n, seed=seed, size=size))

    assert row.verdict == "as-stated", (row.error_units, row.worst_port)


@settings(deadline=None, max_examples=50)
@given(lr=RATES, decay=DECAYS, lr_decay=st.sampled_from((0.0, 0.1)), maximize=st.booleans(), size=SIZES, **STATE)
def test_adagrad_is_done_again(
    lr: float, decay: float, lr_decay: float, maximize: bool, size: float, steps: int, n: int, seed: int
) -> None:
    given_options: dict[str, Any] = {"lr": lr, "weight_decay": decay, "lr_decay": lr_decay, "maximize": maximize}

    row = row_of(stepped(lambda ps: torch.optim.Adagrad(ps, **given_options), steps=steps, n=n, seed=seed, size=size))

    assert row.verdict == "as-stated", (row.error_units, row.worst_port)


@settings(deadline=None, max_examples=50)
@given(lr=RATES, decay=DECAYS, momentum=st.sampled_from((0.0, 0.9)), centered=st.booleans(), size=SIZES, **STATE)
def test_rmsprop_is_done_again(
    lr: float, decay: float, momentum: float, centered: bool, size: float, steps: int, n: int, seed: int
) -> None:
    given_options: dict[str, Any] = {"lr": lr, "weight_decay": decay, "momentum": momentum, "centered": centered}

    row = row_of(stepped(lambda ps: torch.optim.RMSprop(ps, **given_options), steps=steps, n=n, seed=seed, size=size))

    assert row.verdict == "as-stated", (row.error_units, row.worst_port)


def adamw(**given_options: Any) -> Any:
    """Makes the optimizer of the planted faults."""
    return lambda ps: torch.optim.AdamW(
        ps, **{"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, **given_options}
    )


TRUE = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
HIDDEN = [
    ("lr", {"lr": 2e-3}, 1e-3),
    ("weight_decay", {"weight_decay": 0.0}, 1.0),
    ("weight_decay", {"weight_decay": 0.03}, 1.0),
    ("beta1", {"betas": (0.8, 0.95)}, 1.0),
    ("beta2", {"betas": (0.9, 0.999)}, 1.0),
    ("eps", {"eps": 1e-6}, 1e-5),
]


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(("name", "options", "size"), HIDDEN)
def test_a_wrong_option_that_nobody_states_is_found_and_measured(
    name: str, options: dict[str, Any], size: float, steps: int
) -> None:
    update = stepped(adamw(**options), steps=steps, size=size, n=512, states=TRUE)

    row = row_of(update)
    found = effective(row)

    assert row.verdict == "differs"
    assert set(found.changes) == {name}, found
    really = dict(zip(("beta1", "beta2"), options.get("betas", (0, 0)), strict=True)) | options
    assert found.changes[name][1] == pytest.approx(really[name], rel=1e-2)


def test_l2_in_the_gradient_is_told_from_decoupled_decay() -> None:
    class AdamW(torch.optim.Adam):
        """States that it decouples, and does not."""

    update = stepped(
        lambda ps: AdamW(ps, weight_decay=0.1, lr=1e-3), steps=2, n=512, states={"decoupled_weight_decay": True}
    )

    found = effective(row_of(update))

    assert found.changes == {"decoupled": (True, False)}
    assert found.error_units <= ALLOWED


class Uncorrected(torch.optim.AdamW):
    """Without bias correction, as BERT's."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state |= {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(p)}
                    state["exp_avg_sq"] = torch.zeros_like(p)
                state["step"] += 1
                one, two = group["betas"]
                state["exp_avg"].mul_(one).add_(p.grad, alpha=1 - one)
                state["exp_avg_sq"].mul_(two).addcmul_(p.grad, p.grad, value=1 - two)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.addcdiv_(state["exp_avg"], state["exp_avg_sq"].sqrt() + group["eps"], value=-group["lr"])


@pytest.mark.parametrize("steps", [1, 3])
def test_a_missing_bias_correction_is_named(steps: int) -> None:
    found = effective(row_of(stepped(lambda ps: Uncorrected(ps, lr=1e-3), steps=steps, n=512)))

    assert found.changes == {"bias_correction": (True, False)}


def test_amsgrad_that_is_not_stated_is_named() -> None:
    found = effective(row_of(stepped(adamw(amsgrad=True), steps=4, n=512, states={**TRUE, "amsgrad": False})))

    assert found.changes == {"amsgrad": (False, True)}


def test_two_wrong_options_are_found_together() -> None:
    update = stepped(adamw(lr=2e-3, betas=(0.8, 0.95)), steps=2, n=512, states=TRUE)

    found = effective(row_of(update))

    assert set(found.changes) == {"lr", "beta1"}
    assert found.changes["lr"][1] == pytest.approx(2e-3, rel=1e-4)


class Broken(torch.optim.AdamW):
    """Writes one wrong element."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        result = super().step(closure)
        with torch.no_grad():
            self.param_groups[0]["params"][0][3] += 1e-4
        return result


def test_one_wrong_element_is_seen_and_explained_by_nothing() -> None:
    row = row_of(stepped(lambda ps: Broken(ps, lr=1e-3), steps=2, n=512))

    found = effective(row)

    assert row.verdict == "differs"
    assert row.worst_port == "value"
    assert found.options is None


@settings(deadline=None, max_examples=60)
@given(
    kind=st.sampled_from(("AdamW", "Adam", "SGD", "Adagrad")), lr=RATES, decay=DECAYS, seed=st.integers(0, 10**6),
    dtype=st.sampled_from((torch.bfloat16, torch.float16)), foreach=st.booleans(), size=st.sampled_from((1e-2, 1.0)),
    steps=st.integers(1, 3),
)  # fmt: skip
def test_half_precision_is_done_again_in_its_own_roundings_and_never_accused(
    kind: str, lr: float, decay: float, seed: int, dtype: torch.dtype, foreach: bool, size: float, steps: int
) -> None:
    given_options: dict[str, Any] = {"lr": lr, "weight_decay": decay, "foreach": foreach}

    row = row_of(
        stepped(
            lambda ps: getattr(torch.optim, kind)(ps, **given_options), steps=steps, n=200, seed=seed, size=size,
            dtype=dtype,
        )
    )  # fmt: skip

    assert row.verdict == "as-stated" or (row.verdict, dtype) == ("cannot-tell", torch.float16), row


def test_a_wrong_rate_is_seen_in_bfloat16_too() -> None:
    row = row_of(stepped(adamw(lr=0.1), steps=3, n=512, dtype=torch.bfloat16, states={**TRUE, "lr": 0.2}))

    assert row.verdict == "differs"


def other(update: ParameterUpdate, **changes: Any) -> ParameterUpdate:
    from dataclasses import replace

    return replace(update, **changes)


@pytest.mark.parametrize(
    ("changes", "verdict", "why"),
    [
        (
            {"bases": ("torch.optim.adafactor.Adafactor",), "kind": "Adafactor"},
            "cannot-tell",
            "the rule of Adafactor is not known here",
        ),
        ({"is_skipped": True}, "skipped", "the loss scaler refused this step"),
        ({"state": {}, "state_after": {}}, "cannot-tell", "AdamW keeps its state where it is not recorded"),
        ({"gradient": None}, "differs", "it changed although it had no gradient"),
    ],
)
def test_what_cannot_be_told_says_why(changes: dict[str, Any], verdict: str, why: str) -> None:
    row = row_of(other(stepped(adamw()), **changes))

    assert (row.verdict, row.why) == (verdict, why)
