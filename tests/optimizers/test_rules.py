"""Each rule against torch's own optimizer, in float64, whatever the options."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.formats import FORMATS
from hypocenter.optimizers.rounded import given as exactly
from hypocenter.optimizers.rule import RULES, Rule, rule_of, words_of

RATES = st.sampled_from((1e-5, 1e-3, 0.0123, 0.5))
FACTORS = st.sampled_from((0.0, 0.5, 0.9, 0.999))
COMMON = {"lr": RATES, "weight_decay": st.sampled_from((0.0, 1e-3, 0.3)), "maximize": st.booleans()}
EPS = {"eps": st.sampled_from((1e-8, 1e-3))}
BETAS = st.tuples(FACTORS, st.sampled_from((0.5, 0.9, 0.99, 0.999)))
ADAM = {"betas": BETAS, "amsgrad": st.booleans()}
DECOUPLED = {"decoupled_weight_decay": st.booleans()}
OPTIONS: dict[type[torch.optim.Optimizer], Any] = {
    torch.optim.SGD: st.one_of(
        st.fixed_dictionaries(COMMON | {"momentum": FACTORS, "dampening": FACTORS}),
        st.fixed_dictionaries(COMMON | {"momentum": st.just(0.9), "nesterov": st.just(True)}),
    ),
    torch.optim.Adam: st.fixed_dictionaries(COMMON | EPS | ADAM),
    torch.optim.AdamW: st.fixed_dictionaries(COMMON | EPS | ADAM),
    torch.optim.Adamax: st.fixed_dictionaries(COMMON | EPS | {"betas": BETAS}),
    torch.optim.NAdam: st.fixed_dictionaries(
        COMMON | EPS | {"betas": BETAS, "momentum_decay": st.sampled_from((4e-3, 0.5))} | DECOUPLED
    ),
    torch.optim.RAdam: st.fixed_dictionaries(COMMON | EPS | {"betas": BETAS} | DECOUPLED),
    torch.optim.Adagrad: st.fixed_dictionaries(
        COMMON | EPS | {"lr_decay": FACTORS, "initial_accumulator_value": FACTORS}
    ),
    torch.optim.RMSprop: st.fixed_dictionaries(
        COMMON | EPS | {"alpha": st.sampled_from((0.5, 0.9, 0.999)), "momentum": FACTORS, "centered": st.booleans()}
    ),
}
CASES = st.one_of(*(st.tuples(st.just(kind), options) for kind, options in OPTIONS.items()))


def numpy_state(optimizer: torch.optim.Optimizer, weight: torch.Tensor) -> dict[str, Any]:
    """As rules take it."""
    held = {key: value for key, value in optimizer.state.get(weight, {}).items() if isinstance(value, torch.Tensor)}
    return {key: value.item() if value.ndim == 0 else value.numpy().copy() for key, value in held.items()}


@pytest.fixture(scope="module", autouse=True)
def _scalars_in_float64() -> Generator[None, None, None]:
    """NAdam keeps a product in the default format."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@settings(max_examples=400, deadline=None)
@given(case=CASES, seed=st.integers(0, 10**6), size=st.sampled_from((1e-4, 1.0, 1e3)))
def test_a_step_is_the_one_that_torch_makes(case: Any, seed: int, size: float) -> None:
    kind, given_options = case
    random = torch.Generator().manual_seed(seed)
    weight = torch.nn.Parameter(torch.randn(13, generator=random, dtype=torch.float64))
    optimizer = kind([weight], foreach=False, **given_options)
    rule = rule_of([kind.__name__], optimizer.param_groups[0])
    assert rule is not None
    options = rule.read(optimizer.param_groups[0], [kind.__name__])
    assert options is not None

    for _ in range(4):
        gradient = size * torch.randn(13, generator=random, dtype=torch.float64)
        weight.grad = gradient.clone()
        before = weight.detach().numpy().copy()
        after, state = rule.step(before, gradient.numpy(), numpy_state(optimizer, weight), options)
        optimizer.step()

        made = numpy_state(optimizer, weight)
        np.testing.assert_allclose(after, weight.detach().numpy(), rtol=1e-9, atol=1e-12)
        assert {key for key in made if key != "step"} == {key for key in state if key != "step"}
        for key in made:
            largest = np.abs(made[key]).max()  # a sum's rounding is relative to its terms, which may cancel
            np.testing.assert_allclose(state[key], made[key], rtol=1e-12, atol=1e-12 * max(size**2, largest))


@pytest.mark.parametrize("name", sorted(RULES.entries()))
def test_the_same_formula_serves_arrays_tensors_and_numbers_that_know_their_error(name: str) -> None:
    rule: Rule = RULES.entries()[name]
    options = rule.options(family=name, weight_decay=0.1)
    weight, gradient = np.linspace(-1, 1, 9), np.linspace(2, -3, 9)

    of_array, state = rule.step(weight, gradient, {}, options)
    of_tensor, _ = rule.step(torch.tensor(weight), torch.tensor(gradient), {}, options)
    float64 = FORMATS["float64"]
    rounded, _ = rule.step(exactly(weight, float64), exactly(gradient, float64), {}, options)

    np.testing.assert_allclose(of_tensor.numpy(), of_array, rtol=1e-15)
    np.testing.assert_array_equal(rounded.exact, of_array)
    assert set(state) - {"step"} <= set(rule.states)
    assert state["step"] == 1


@pytest.mark.parametrize(
    ("classes", "told", "family"),
    [
        (["MyAdamW", "torch.optim.adamw.AdamW", "Adam"], {}, "adam"),
        (["mindspore.nn.AdamWeightDecay", "Optimizer"], {"betas": (0.9, 0.99)}, "adam"),
        (["RAdam", "Adam"], {"betas": (0.9, 0.99)}, "radam"),
        (["SparseAdam", "Adam"], {"betas": (0.9, 0.99)}, None),
        (["Momentum"], {}, "sgd"),
        (["Mine"], {}, None),
    ],
)
def test_the_rule_is_told_by_the_nearest_class(classes: list[str], told: dict[str, Any], family: str | None) -> None:
    rule = rule_of(classes, told)

    assert (rule.name if rule else None) == family


@pytest.mark.parametrize(
    ("told", "missing"),
    [({"lr": 0.1, "betas": (0.9, 0.99)}, "eps"), ({"lr": float("nan"), "betas": (0.9, 0.99), "eps": 0.0}, "lr")],
)
def test_what_is_not_told_is_not_guessed(told: dict[str, Any], missing: str) -> None:
    assert RULES.entries()["adam"].read(told, ["Adam"]) is None, missing


def test_state_has_one_word_in_all_frameworks() -> None:
    assert words_of("Adam")["moments1"] == words_of()["exp_avg"] == "exp_avg"
    assert "accum" not in words_of()
    assert (words_of("Adagrad")["accum"], words_of("Mine", "SGD")["accum"]) == ("sum", "momentum_buffer")
