"""An op executed again: on all that it was given, under the run's settings, and often enough to accuse somebody."""

import itertools

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from hypocenter.diagnose.causes.hardware_fault import decide
from hypocenter.diagnose.evidence import Evidence
from hypocenter.replay import adjudicate
from hypocenter.replay.deadline import Deadline
from hypocenter.tap import kept_arguments
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.tracer import OpTracer

INF = float("inf")
turns = itertools.count()


@torch.library.custom_op("hypocenter_test::moody", mutates_args=())
def moody(x: torch.Tensor) -> torch.Tensor:
    """B the first time and in one of five, A in the others."""
    return x * (INF if next(turns) % 5 == 0 else 2.0)


@torch.library.custom_op("hypocenter_test::once", mutates_args=())
def once(x: torch.Tensor) -> torch.Tensor:
    """Wrong the first time only: what a device may do."""
    return x * (INF if next(turns) == 0 else 2.0)


@torch.library.custom_op("hypocenter_test::scores", mutates_args=())
def scores(x: torch.Tensor, attn_bias: torch.Tensor | None = None) -> torch.Tensor:
    return x.clone() if attn_bias is None else x + attn_bias.sum()


@torch.library.custom_op("hypocenter_test::two", mutates_args=())
def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x * 2.0, x * 3e38 * 3e38


@torch.library.custom_op("hypocenter_test::chosen", mutates_args=())
def chosen(x: torch.Tensor) -> torch.Tensor:
    """Another kernel under another setting."""
    return x * (2.0 if torch.backends.cuda.flash_sdp_enabled() else INF)


@pytest.fixture(autouse=True)
def from_the_first_turn():
    global turns
    turns = itertools.count()


def traced(*ops):
    """The last node that made something non-finite of finite values."""
    tracer = OpTracer(OpContext(lambda module: None), lambda t: ("batch", "x"))
    with tracer:
        for op in ops:
            op()
    return tracer, next(node for node in reversed(tracer.nodes) if node.traced.real)


def verdict(tracer, node):
    again = adjudicate.rerun_same(node, Deadline())
    facts = adjudicate.op_facts(tracer, node)
    evidence = Evidence(
        id="", trigger="nonfinite-loss", step=0, rank=0, world_size=1, origin=facts, again=again,
        float64=adjudicate.rerun_float64(node, Deadline()), chips=("+inf ×1",),
    )  # fmt: skip
    return decide(evidence)


def test_a_kernel_of_two_minds_accuses_no_device():
    tracer, node = traced(lambda: moody(torch.ones(3)))

    again = adjudicate.rerun_same(node, Deadline())

    assert (again.ran, again.finite, again.repeats) == (True, True, False)
    assert verdict(tracer, node) is None


def test_what_never_comes_again_is_the_device():
    found = verdict(*traced(lambda: once(torch.ones(3))))

    assert (found.cause, found.confidence) == ("hardware-fault", "proven")


def test_an_op_is_not_executed_without_an_argument_that_was_too_large(monkeypatch):
    monkeypatch.setattr(kept_arguments, "CAPTURE_BYTES", 64)

    tracer, node = traced(lambda: scores(torch.ones(3), torch.full((100,), 3e38)))

    for rerun in (adjudicate.rerun_same(node, Deadline()), adjudicate.rerun_float64(node, Deadline())):
        assert not rerun.ran
        assert "too large" in rerun.why_not
    assert verdict(tracer, node) is None


def test_the_output_that_went_wrong_is_compared_with_itself():
    tracer, node = traced(lambda: two(torch.ones(3)))

    assert adjudicate.rerun_same(node, Deadline()).equal_bits
    assert verdict(tracer, node) is None


def test_an_input_is_kept_as_it_was_when_the_op_read_it():
    x = torch.full((3,), 1e30)

    tracer, node = traced(lambda: torch.square(x), lambda: x.zero_())

    assert node.traced.op == "aten.pow.Tensor_Scalar"
    assert adjudicate.rerun_same(node, Deadline()).equal_bits
    assert adjudicate.rerun_float64(node, Deadline()).absmax == pytest.approx(1e60)
    assert verdict(tracer, node) is None


def test_an_op_is_executed_again_under_its_own_settings():
    def under_another_setting():
        with sdpa_kernel(SDPBackend.MATH):
            chosen(torch.ones(3))

    tracer, node = traced(under_another_setting)

    assert adjudicate.rerun_same(node, Deadline()).equal_bits
    assert verdict(tracer, node) is None
