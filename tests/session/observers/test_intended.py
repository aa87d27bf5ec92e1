"""The recomputed update equals torch's own, in float64 to rounding and in float32 to float32's rounding."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.session.observers.intended import intended
from hypocenter.session.torch_framework import TorchFramework

family_of = TorchFramework().family_of

FORMATS = {torch.float64: 1e-12, torch.float32: 2e-6}
sizes = st.sampled_from([1e-4, 1e-2, 1.0])
rates = st.floats(1e-5, 0.5)
decays = st.sampled_from([0.0, 1e-2, 0.3])

sgd = st.fixed_dictionaries(
    {"lr": rates, "momentum": st.sampled_from([0.0, 0.5, 0.9]), "weight_decay": decays, "maximize": st.booleans()}
).flatmap(lambda o: st.booleans().map(lambda n: {**o, "nesterov": n and o["momentum"] > 0}))
dampened = sgd.map(lambda o: {**o, "nesterov": False, "momentum": 0.9, "dampening": 0.3})
adam = st.fixed_dictionaries(
    {
        "lr": rates,
        "betas": st.tuples(st.sampled_from([0.0, 0.8, 0.9]), st.sampled_from([0.9, 0.95, 0.999])),
        "eps": st.sampled_from([1e-8, 1e-3]),
        "weight_decay": decays,
        "amsgrad": st.booleans(),
        "maximize": st.booleans(),
    }
)
cases = st.one_of(
    st.tuples(st.just(torch.optim.SGD), st.one_of(sgd, dampened)),
    st.tuples(st.sampled_from([torch.optim.Adam, torch.optim.AdamW]), adam),
)


@settings(max_examples=60, deadline=None)
@given(case=cases, dtype=st.sampled_from(list(FORMATS)), foreach=st.booleans(), seed=st.integers(0, 99), size=sizes)
def test_recomputed_update_is_the_one_that_torch_made(case, dtype, foreach, seed, size):
    make, options = case
    random = torch.Generator().manual_seed(seed)
    weight = torch.nn.Parameter(torch.randn(17, generator=random, dtype=dtype))
    optimizer = make([weight], foreach=foreach, **options)

    for _ in range(4):
        weight.grad = size * torch.randn(17, generator=random, dtype=dtype)
        before, grad = weight.detach().double().clone(), weight.grad.double().clone()  # foreach Nesterov overwrites it
        optimizer.step()
        state = {k: v.double() if k != "step" else v for k, v in optimizer.state[weight].items() if v is not None}
        update = intended(family_of(optimizer), optimizer.param_groups[0], before, grad, state)

        assert update is not None
        done = weight.detach().double() - before
        torch.testing.assert_close(update, done, rtol=50 * FORMATS[dtype], atol=FORMATS[dtype])


def test_learning_rate_that_is_a_tensor():
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = torch.optim.Adam([weight], lr=torch.tensor(0.1, dtype=torch.float64))
    weight.grad = torch.full((3,), 2.0, dtype=torch.float64)

    optimizer.step()

    update = intended("Adam", optimizer.param_groups[0], torch.ones(3), weight.grad, optimizer.state[weight])
    assert update is not None
    torch.testing.assert_close(1.0 + update, weight.detach())


def test_a_subclass_may_do_anything():
    class Mine(torch.optim.AdamW):
        pass

    assert family_of(Mine([torch.nn.Parameter(torch.ones(1))])) == ""


@pytest.mark.parametrize("family", ["SGD", "AdamW"])
def test_missing_state_gives_no_answer(family):
    group = {"lr": 0.1, "momentum": 0.9, "nesterov": False, "weight_decay": 0.0, "betas": (0.9, 0.99), "eps": 0.0}

    assert intended(family, group, torch.ones(2), torch.ones(2), {}) is None
