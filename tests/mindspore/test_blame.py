"""Failed steps of real nets: the operator, its place and its cause, as for torch; healthy ones stay silent."""

import contextlib
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, ops

from hypocenter.diagnose.verdicts import judge

sys.path.insert(0, str(Path(__file__).parent))

from failing_steps import Attention, Compiled, FeedForward, Linear, Overflowing, investigated, normal  # isort: skip


@pytest.fixture(autouse=True)
def _seeded():
    ms.set_seed(1)


def batch():
    return normal(4, 2, 8)


def overflow_in_one_sample():
    net = Overflowing(scale=1.0)
    net.norm = ops.identity
    values = batch().asnumpy().copy()
    values[2] *= 2000
    return investigated(net, lambda x: (net(x) ** 2).mean(), Tensor(values))


def overflow_in_backward():
    net = Overflowing(scale=1.0)
    return investigated(net, lambda x: (net.ffn(x * 30).astype(ms.float32) * 1e5).sum(), batch())


def log_of_zero():
    net = Linear()
    return investigated(net, lambda x: ops.log(ops.relu(net(x))).mean(), batch())


def zero_by_zero():
    net = Linear()

    def loss(x):
        y = net(x) * 0
        return (y / y).sum()

    return investigated(net, loss, batch())


def root_at_zero():
    net = Linear()
    return investigated(net, lambda x: ops.sqrt((net(x) * 0).sum(-1)).sum(), batch())


def norm_at_zero():
    net = Linear()
    return investigated(net, lambda x: ops.norm(net(x) * 0, dim=-1).sum(), batch())


def power_at_zero():
    net = Linear()
    return investigated(net, lambda x: ops.pow(net(x) * 0, 0.5).sum(), batch())


def masked_by_where():
    net = Linear()

    def loss(x):
        y = net(x)
        return ops.where(y > 0, ops.sqrt(y), ops.zeros_like(y)).sum()

    return investigated(net, loss, batch())


def masked_by_masked_fill():
    net = Linear()

    def loss(x, mask):
        y = net(x) * mask
        return ops.log(y * y).masked_fill(mask == 0, 0.0).sum()

    return investigated(net, loss, batch(), Tensor(np.array([1, 1, 0, 1], np.float32)))


def masked_row_by_hand():
    net = Attention()

    def loss(x, mask):
        scores = net.q(x) + mask
        scores = scores - scores.max(-1, keepdims=True)
        return (ops.exp(scores) / ops.exp(scores).sum(-1, keepdims=True)).sum()

    mask = np.zeros((4, 2, 8), np.float32)
    mask[1, 0] = -np.inf
    return investigated(net, loss, batch(), Tensor(mask))


def bad_batch():
    net = Linear()
    values = batch().asnumpy().copy()
    values[1, 0, 3] = np.nan
    return investigated(net, lambda x: (net(x) ** 2).mean(), Tensor(values))


def bad_parameter():
    net = Linear()
    weight = net.proj.weight.asnumpy().copy()
    weight[1, 1] = np.inf
    net.proj.weight.set_data(Tensor(weight))
    return investigated(net, lambda x: (net(x) ** 2).mean(), batch())


def loss_scale_too_high():
    net = Linear()
    net.to_float(ms.float16)
    scale = 2.0**24
    return investigated(net, lambda x: (net(x).astype(ms.float32) ** 2).mean() * scale, batch(), loss_scale=scale)


def long_sum():
    net = Linear()

    def loss(x):
        y = net(x).astype(ms.float16) * 0 + 6e3
        return ops.ReduceSum()(y).astype(ms.float32)

    return investigated(net, loss, batch())


@pytest.mark.parametrize(
    ("fails", "op", "phase", "cause", "confidence"),
    [
        (overflow_in_one_sample, "Mul", "forward", "format-overflow", "proven"),
        (overflow_in_backward, "Cast", "backward", "format-overflow", "proven"),
        (log_of_zero, "Log", "loss", "log-of-zero", "proven"),
        (zero_by_zero, "Div", "loss", "division-by-zero", "proven"),
        (root_at_zero, "Sqrt", "backward", "sqrt-gradient-at-zero", "proven"),
        (norm_at_zero, "Sqrt", "backward", "sqrt-gradient-at-zero", "proven"),
        (power_at_zero, "Pow", "backward", "pow-gradient", "proven"),
        (masked_by_where, "Sqrt", "loss", "masked-gradient-trap", "proven"),
        (masked_by_masked_fill, "Log", "backward", "masked-gradient-trap", "proven"),
        (masked_row_by_hand, "SubExt", "loss", "inf-minus-inf", "proven"),
        (loss_scale_too_high, "Cast", "backward", "loss-scale-overflow", "proven"),
        (long_sum, "ReduceSum", "loss", "accumulation-overflow", "proven"),
    ],
)
def test_operator_and_cause(fails, op, phase, cause, confidence):
    evidence = fails()

    assert evidence.reproduced, evidence.why_not
    assert (evidence.origin.op, evidence.origin.phase) == (op, phase)
    verdict = judge(evidence)
    assert (verdict.cause, verdict.confidence) == (cause, confidence), verdict
    assert evidence.again.equal_bits
    assert evidence.origin.source.file == __file__ or evidence.origin.site


@pytest.mark.parametrize(
    ("fails", "kind", "name", "cause"),
    [(bad_batch, "batch", "[0]", "bad-input"), (bad_parameter, "param", "proj.weight", "bad-parameter")],
)
def test_value_that_was_bad_before_any_operator(fails, kind, name, cause):
    evidence = fails()

    assert (evidence.leaf_kind, evidence.leaf.name) == (kind, name)
    assert judge(evidence).cause == cause


def test_bad_samples_are_named_and_confirmed():
    evidence = overflow_in_one_sample()

    assert evidence.samples == (2,)
    assert evidence.samples_confirmed


def test_overflow_is_told_with_its_operands():
    evidence = overflow_in_one_sample()

    assert (evidence.origin.site, evidence.origin.module) == ("ffn", "FeedForward")
    assert evidence.origin.source.text == "h = h * h"
    assert [(t.name, t.dtype, t.origin) for t in evidence.origin.inputs] == [
        ("input", "float16", "ReLU in ffn"),
        ("other", "float16", "ReLU in ffn"),
    ]
    assert evidence.limit == 65504
    assert evidence.float64.absmax == pytest.approx(evidence.origin.inputs[0].summary.absmax ** 2)


@pytest.mark.parametrize("fill", [-np.inf, -1e9])
def test_masks_of_a_healthy_model_accuse_nobody(fill):
    net = Attention(fill=fill)
    keep = Tensor(np.tril(np.ones((2, 2), np.bool_)))

    evidence = investigated(net, lambda x, keep: (net(x, keep) ** 2).mean(), batch(), keep)

    assert not evidence.reproduced
    assert evidence.origin is None


def test_masked_values_are_not_blamed_for_another_failure():
    net = Attention()
    keep = Tensor(np.tril(np.ones((2, 2), np.bool_)))

    def loss(x, keep):
        y = net(x, keep)
        harmless = ops.where(y > 0, ops.log(ops.relu(y)), ops.zeros_like(y)).sum()
        return ops.stop_gradient(harmless) + ops.log((y * 0).sum())

    evidence = investigated(net, loss, batch(), keep)

    assert evidence.origin.op == "Log"
    assert evidence.origin.outputs[0].shape == ()
    assert judge(evidence).cause == "log-of-zero"
    assert "Log" in [op.op for op in evidence.killed]


@pytest.mark.night
def test_replay_leaves_everything_as_it_was():
    net = Overflowing()
    before = {name: p.asnumpy().copy() for name, p in net.parameters_and_names()}
    state = ms.get_rng_state().asnumpy().copy()

    investigated(net, lambda x: (net(x) ** 2).mean(), batch())

    assert all(np.array_equal(p.asnumpy(), before[name]) for name, p in net.parameters_and_names())
    assert np.array_equal(ms.get_rng_state().asnumpy(), state)


def test_cell_in_float32_is_tried_and_verified():
    net = Overflowing()

    evidence = investigated(net, lambda x: (net(x) ** 2).mean(), batch())

    assert evidence.cure.status == "cured"
    assert evidence.cure.targets == ("ffn",)
    assert evidence.cure.minimal
    assert evidence.remedies[0].verified
    assert str(net.ffn.wo.mixed_precision_type) == str(FeedForward().wo.mixed_precision_type)


class Twice(ms.nn.Cell):
    """Two blocks, each of which overflows by itself."""

    def __init__(self):
        super().__init__()
        self.norm, self.first, self.second = ms.nn.LayerNorm((8,)), FeedForward(), FeedForward()

    def construct(self, x):
        between = self.first(self.norm(x) * 2000.0).astype(ms.float32)
        return self.second(self.norm(between / 1e6) * 2000.0).astype(ms.float32) / 1e6


def test_of_two_cells_each_is_needed():
    net = Twice()

    evidence = investigated(net, lambda x: (net(x) ** 2).mean(), batch())

    assert evidence.cure.status == "cured"
    assert evidence.cure.targets == ("first", "second")
    assert evidence.cure.minimal


def test_float32_cures_nothing_where_the_mathematics_is_singular():
    evidence = log_of_zero()

    assert evidence.cure.status == "no-cure"
    assert not evidence.remedies


def test_operators_of_a_compiled_cell_are_found_too():
    net = Overflowing()
    net.ffn = Compiled()

    evidence = investigated(net, lambda x: (net(x) ** 2).mean(), batch())

    assert (evidence.origin.op, evidence.origin.site, evidence.origin.source.text) == ("Mul", "ffn", "h = h * h")
    assert evidence.cure.targets == ("ffn",)


def test_a_compiled_cell_that_cannot_be_taken_apart_is_named(monkeypatch):
    net = Overflowing()
    net.ffn = Compiled()
    monkeypatch.setattr("hypocenter.replay.mindspore.engine._uncompiled", contextlib.nullcontext)

    evidence = investigated(net, lambda x: (net(x) ** 2).mean(), batch())

    assert (evidence.origin.op, evidence.origin.site, evidence.origin.module) == ("CompiledFunction", "ffn", "Compiled")
    assert judge(evidence).confidence == "possible"


def test_a_bad_constant_is_not_laid_on_what_was_harmless_before():
    net = Linear()
    constant = Tensor(np.array([[1.0, np.nan, 1.0, 1.0]], np.float32))

    def loss(x):
        y = net(x)
        harmless = ops.where(y > 0, ops.log(ops.relu(y)), ops.zeros_like(y))
        return (harmless * constant).sum()

    evidence = investigated(net, loss, batch())

    assert evidence.leaf_kind == "external"
    assert judge(evidence).confidence == "possible"
