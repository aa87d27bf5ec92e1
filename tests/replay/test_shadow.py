"""Behind every value its shadow: it follows views, writes in place and reused memory, and leaves decisions alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hypocenter.replay.shadow import Shadow
from hypocenter.tap.op_context import OpContext

BFLOAT16 = torch.bfloat16


def shadowed(
    make: Callable[[], Tensor], limit_s: float = 60.0, limit_bytes: int = 1 << 30
) -> tuple[Shadow, Tensor, Tensor]:
    """The mode, what was made, and its shadow."""
    mode = Shadow(OpContext(lambda _: None), limit_s=limit_s, limit_bytes=limit_bytes)
    with mode:
        made = make()
        shadow = mode.of(made) if mode.is_whole else made.double()
    mode.finish()
    return mode, made, shadow.clone()


def error(mode: Shadow, op: str) -> float:
    return max(each.error for each in mode.steps if each.op.startswith(f"aten.{op}."))


def test_a_sum_in_a_short_format_is_far_from_its_shadow() -> None:
    ones = torch.full((300,), 1.0, dtype=BFLOAT16)

    def added_up() -> Tensor:
        total = torch.zeros((), dtype=BFLOAT16)
        for one in ones:
            total = total + one
        return total

    mode, made, shadow = shadowed(added_up)

    assert (float(made), float(shadow)) == (256.0, 300.0)
    assert error(mode, "add") == pytest.approx(44 / 300, rel=1e-3)


def test_a_shadow_follows_views_and_what_is_written_in_place() -> None:
    x = torch.arange(12.0)

    def written() -> Tensor:
        y = x.to(BFLOAT16) / 3
        y.view(3, 4)[1].mul_(3)
        y[::2].add_(1.0)
        return y

    _, made, shadow = shadowed(written)

    expected = torch.arange(12.0, dtype=torch.float64) / 3
    expected.view(3, 4)[1] *= 3
    expected[::2] += 1
    assert torch.equal(shadow, expected)
    assert not torch.equal(made.double(), expected)


@pytest.mark.parametrize("dtype", [BFLOAT16, torch.float16, torch.float32])
def test_the_shadow_of_a_sequence_is_what_was_asked_for(dtype: torch.dtype) -> None:
    mode, _, shadow = shadowed(lambda: torch.arange(3000, 3024, dtype=dtype).cos())

    assert torch.equal(shadow, torch.arange(3000.0, 3024.0, dtype=torch.float64).cos())
    assert error(mode, "cos") < 1e-4 if dtype == torch.float32 else error(mode, "cos") > 0.5


def test_whole_numbers_are_exact_before_they_become_short() -> None:
    _, made, shadow = shadowed(lambda: torch.arange(3000, 3024).to(BFLOAT16))

    assert torch.equal(shadow, torch.arange(3000, 3024).double())
    assert not torch.equal(made.double(), shadow)


def test_whole_numbers_of_a_sequence_are_as_they_are() -> None:
    _, made, shadow = shadowed(lambda: torch.linspace(0.0, 1.0, 5) + torch.arange(5))

    assert torch.equal(made.double(), shadow)


def test_a_difference_of_large_numbers_is_found_in_float32() -> None:
    x = 3000.0 + torch.randn(64, 32, generator=torch.Generator().manual_seed(0))

    mode, _, shadow = shadowed(lambda: (x * x).mean(-1) - x.mean(-1) ** 2)

    assert torch.allclose(shadow, x.double().var(-1, correction=0))
    assert error(mode, "mean") < 1e-6
    assert error(mode, "sub") > 0.1


def test_decisions_and_random_draws_are_the_programs_own() -> None:
    x = torch.rand(64, dtype=BFLOAT16, generator=torch.Generator().manual_seed(0))

    def drawn() -> Tensor:
        order = (x / 3).argsort()
        return nn.functional.dropout((x / 3)[order].round(), 0.5) + torch.rand(64)

    torch.manual_seed(1)
    plain = drawn()
    torch.manual_seed(1)
    mode, made, _ = shadowed(drawn)

    assert torch.equal(made, plain)
    assert error(mode, "add") < 1e-6


def test_gradients_have_shadows_too() -> None:
    layer, x = nn.Linear(8, 4), torch.randn(5, 8)

    def gradient() -> Tensor:
        with torch.autocast("cpu", BFLOAT16):
            loss = layer(x).float().square().mean()
        return torch.autograd.grad(loss, [layer.weight])[0]

    _, made, shadow = shadowed(gradient)

    exact = nn.Linear(8, 4).double()
    exact.load_state_dict(layer.state_dict())
    exact(x.double()).square().mean().backward()
    assert exact.weight.grad is not None
    assert torch.allclose(shadow, exact.weight.grad)
    assert not torch.allclose(made.double(), exact.weight.grad, rtol=1e-6)


def test_infinities_of_a_mask_take_no_part() -> None:
    scores = torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), -math.inf)

    mode, _, _ = shadowed(lambda: (scores + 0.1).to(BFLOAT16).softmax(-1))

    assert all(each.error < 0.01 for each in mode.steps)


def test_whole_numbers_that_wrap_around_are_counted() -> None:
    pixels = torch.tensor([0, 100, 200], dtype=torch.uint8)

    mode, made, _ = shadowed(lambda: (pixels - 128).float())

    assert made.tolist() == [128.0, 228.0, 72.0]
    assert [(each.op, each.n_wrong, each.n) for each in mode.wrapped] == [("aten.sub.Tensor", 2, 3)]


def test_whole_numbers_that_fit_are_not() -> None:
    pixels = torch.tensor([0, 100, 200], dtype=torch.uint8)

    mode, _, _ = shadowed(lambda: pixels + 55)

    assert mode.wrapped == []


TABLE = torch.arange(5000.0)


@pytest.mark.parametrize(
    "look_up",
    [lambda at: torch.nn.functional.embedding(at, TABLE[:, None]), lambda at: TABLE[at], lambda at: TABLE.take(at)],
    ids=["embedding", "index", "take"],
)
def test_indices_that_were_rounded_are_counted(look_up: Callable[[torch.Tensor], torch.Tensor]) -> None:
    ids = torch.tensor([3, 2047, 4001]).half()

    mode, _, _ = shadowed(lambda: look_up(ids.long()))

    assert [(each.dtype, each.n_wrong, each.n, each.are_indices) for each in mode.wrapped] == [("float16", 1, 3, True)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: TABLE[torch.tensor([3, 2048]).half().long()],
        lambda: TABLE[torch.tensor([3, 4999]).float().long()],
        lambda: TABLE[(torch.tensor([0.5, 0.7]).half() * 4096).long()[:1] * 0 + 4000],
        lambda: torch.tensor([3.0, 4998.0]).half().long().float(),
    ],
    ids=["that has them all", "a longer format", "looked up is another", "nothing is looked up"],
)
def test_indices_that_were_not_are_not(make: Callable[[], torch.Tensor]) -> None:
    mode, _, _ = shadowed(make)

    assert mode.wrapped == []


@pytest.mark.parametrize("limits", [{"limit_s": -1.0}, {"limit_bytes": 64}])
def test_beyond_a_limit_the_step_goes_on_without(limits: dict[str, float]) -> None:
    x = torch.ones(64)

    mode, made, _ = shadowed(lambda: (x + 1) * 2, **limits)  # type: ignore[arg-type]

    assert not mode.is_whole
    assert torch.equal(made, torch.full((64,), 4.0))
