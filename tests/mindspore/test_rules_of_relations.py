"""What must not matter to a MindSpore model and does is named; what may be meant is left alone."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

import hypocenter
from hypocenter.record.reader import open_run
from hypocenter.session.mindspore import relations

sys.path.insert(0, str(Path(__file__).parent))
from rules_programs import findings, normal  # isort: skip

VOCABULARY, LENGTH, N = 32, 12, 6


class Attention(nn.Cell):
    """One head."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Dense(16, 16), nn.Dense(16, 16), nn.Dense(16, 16)
        self.mask = Tensor(np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 0 if kind == "strict" else 1))
        self.kind = kind

    def construct(self, x):
        scores = ops.matmul(self.q(x), self.k(x).swapaxes(1, 2)) / 4.0
        if self.kind != "open":
            scores = scores + self.mask
        return ops.matmul(ops.softmax(scores, -1), self.v(x))


class Model(nn.Cell):
    """Tokens to the next ones."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        ms.set_seed(1)
        self.embed, self.head, self.drop = nn.Embedding(VOCABULARY, 16), nn.Dense(16, VOCABULARY), nn.Dropout(p=0.1)
        self.attention, self.kind = Attention(kind), kind

    def construct(self, ids):
        x = self.drop(self.embed(ids))
        x = x + self.attention(x)
        if self.kind == "mixed":
            x = x - x.mean(0, keep_dims=True)
        return self.head(x)


def trained(out, net, loss, given, n_steps=3, relations="every=1"):  # by default not where a step takes long
    optimizer = nn.SGD(net.trainable_params(), 1e-2)

    def loop():
        gradient = ms.value_and_grad(loss, None, optimizer.parameters)
        for step in range(n_steps):
            _, grads = gradient(*given(step))
            optimizer(grads)

    return findings(out, net, loop, relations=relations)


def language_model(out, kind):
    net = Model(kind).set_train()

    def given(step):
        tokens = np.random.default_rng(step).integers(0, VOCABULARY, (N, LENGTH + 1)).astype(np.int32)
        return Tensor(tokens[:, :-1]), Tensor(tokens[:, 1:])

    return trained(out, net, lambda x, y: ops.cross_entropy(net(x).reshape(-1, VOCABULARY), y.reshape(-1)), given)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["open", "strict"])  # strict: of the first row all is masked, so all is seen alike
def test_hc242_a_model_that_sees_the_next_token(tmp_path, kind):
    found = language_model(tmp_path / "leaks", kind)

    assert (found["HC242"].site, found["HC242"].confidence) == ("attention", "proven")
    assert "HC241" not in found


class Growing(Model):
    """A mask that is kept, and grows with the longest sequence: by zeros, or as it should."""

    def construct(self, ids):
        have, length = len(self.attention.mask), ids.shape[1]
        if length > have:
            whole = np.triu(np.full((length, length), -1e9, np.float32), 1)
            if self.kind == "zeros":
                whole[have:] = whole[:, have:] = 0.0
            self.attention.mask = Tensor(whole)
        whole, self.attention.mask = self.attention.mask, self.attention.mask[:length, :length]
        found = super().construct(ids)
        self.attention.mask = whole
        return found


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "grows_at", "told"), [("zeros", 5, 5), ("zeros", 8, 8), ("causal", 5, None)])
def test_hc242_begins_where_sequences_grow(tmp_path, monkeypatch, kind, grows_at, told):
    monkeypatch.setattr(relations, "LONGEST_S", np.inf)
    net = Growing(kind).set_train()

    def loss(ids):
        return ops.cross_entropy(net(ids[:, :-1]).reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))

    def given(step):
        length = LENGTH + 1 if step < grows_at else 18
        return (Tensor(np.random.default_rng(step).integers(0, VOCABULARY, (N, length)).astype(np.int32)),)

    found = trained(tmp_path / kind, net, loss, given, 10, "auto")
    assert {code: finding.step for code, finding in found.items()} == ({"HC242": told} if told else {})
    assert not told or "it held at step" in found["HC242"].why[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "told"), [("open", ["HC242"]), ("causal", [])])
def test_hc242_where_tokens_and_labels_are_cut_out_of_one_argument(tmp_path, kind, told):
    net = Model(kind).set_train()

    def loss(ids):
        return ops.cross_entropy(net(ids[:, :-1]).reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))

    def given(step):
        return (Tensor(np.random.default_rng(step).integers(0, VOCABULARY, (N, LENGTH + 1)).astype(np.int32)),)

    assert list(trained(tmp_path / kind, net, loss, given)) == told


def test_hc241_statistics_over_the_batch(tmp_path):
    found = language_model(tmp_path / "mixed", "mixed")

    assert (found["HC241"].site, "HC242" in found) == ("", False)
    assert "(Model)" in found["HC241"].why[1]


def test_a_healthy_model_is_left_alone(tmp_path):
    assert language_model(tmp_path / "healthy", "causal") == {}


class Recurrent(nn.Cell):
    """A state that goes on along the first dimension, as of inputs that are laid out by time."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Dense(8, 8), nn.Dense(8, 2)

    def construct(self, x):
        state, out = x[0] * 0, []
        for at in range(x.shape[0]):
            state = ops.tanh(self.up(x[at]) + state)
            out.append(state)
        return self.down(ops.stack(out))


def test_what_may_be_the_time_accuses_nobody(tmp_path):
    net = Recurrent()

    assert trained(
        tmp_path / "time", net, lambda x, y: ((net(x) - y) ** 2).mean(),
        lambda step: (normal(7, 5, 8, seed=step), normal(7, 5, 2, seed=step + 100)),
    ) == {}  # fmt: skip


def test_similarities_of_samples_accuse_nobody(tmp_path):
    net = nn.Dense(8, 4)

    def loss(a, b):
        return ops.cross_entropy(ops.matmul(net(a), net(b).T), ops.arange(16).astype(ms.int32))

    given = lambda step: (normal(16, 8, seed=step), normal(16, 8, seed=step + 100))  # noqa: E731
    assert "HC241" not in trained(tmp_path / "contrastive", net, loss, given)


class Neighbours(nn.Cell):
    """Nodes that are given what their neighbours hold."""

    def __init__(self, matrix) -> None:
        super().__init__()
        self.up, self.matrix = nn.Dense(8, 4), matrix

    def construct(self, x, matrix=None):
        return ops.matmul(self.matrix if matrix is None else matrix, self.up(x))


@pytest.mark.slow
@pytest.mark.parametrize("is_held", [True, False])
def test_nodes_of_a_graph_accuse_nobody(tmp_path, is_held):
    matrix = ops.softmax(normal(12, 12), -1)
    net = Neighbours(matrix if is_held else None)

    def loss(x, y):
        return ((net(x) if is_held else net(x, matrix)) - y).square().mean()

    given = lambda step: (normal(12, 8, seed=step), normal(12, 4, seed=step + 100))  # noqa: E731
    assert "HC241" not in trained(tmp_path / "graph", net, loss, given)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["scores", "softmax", "log_softmax"])
@pytest.mark.parametrize("loss", [ops.cross_entropy, nn.CrossEntropyLoss(), ops.nll_loss], ids=["ops", "nn", "nll"])
def test_hc251_what_loss_functions_are_given(tmp_path, loss, how):
    net, is_nll = nn.Dense(8, 4), loss is ops.nll_loss
    given = {"scores": lambda z: z, "softmax": lambda z: ops.softmax(z, -1), "log_softmax": ops.log_softmax}[how]
    found = trained(
        tmp_path / "run", net, lambda x, y: loss(given(net(x)), y),
        lambda step: (normal(16, 8, seed=step), Tensor(np.arange(16, dtype=np.int32) % 4)),
    )  # fmt: skip

    if how == "softmax":
        assert found["HC251"].title.startswith("nll_loss" if is_nll else "cross_entropy")
        assert Path(found["HC251"].source.file).name in (Path(__file__).name, "loss.py")
    else:
        assert "HC251" not in found


def test_training_is_the_same_to_the_bit(tmp_path):
    def weights(out):
        ms.set_seed(1)
        net = nn.SequentialCell(nn.Dense(8, 16), nn.BatchNorm1d(16), nn.Dense(16, 4)).set_train()
        optimizer = nn.Adam(net.trainable_params(), 1e-2)
        gradient = ms.value_and_grad(lambda x, y: ops.cross_entropy(net(x), y), None, optimizer.parameters)
        watched = contextlib.nullcontext() if out is None else hypocenter.watch(net, out=str(out), relations="every=1")
        with watched:
            for step in range(8):
                _, grads = gradient(normal(16, 8, seed=step), Tensor(np.arange(16, dtype=np.int32) % 4))
                optimizer(grads)
        return [p.asnumpy().tobytes() for p in net.get_parameters()]

    assert weights(None) == weights(tmp_path / "run")


class Own(nn.Cell):
    """A cell with a bprop."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def construct(self, x):
        if self.kind == "round":
            return ops.round(x)
        if self.kind == "reversed":
            return x
        return x * ops.rsqrt((x * x).mean(-1, keep_dims=True) + 1e-6)

    def bprop(self, x, out, dout):
        if self.kind == "round":
            return (dout,)
        if self.kind == "reversed":
            return (-dout,)
        inverse = ops.rsqrt((x * x).mean(-1, keep_dims=True) + 1e-6)
        if self.kind == "short":
            return (inverse * dout,)
        return (inverse * (dout - x * inverse * (x * inverse * dout).mean(-1, keep_dims=True)),)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["short", "right", "round", "reversed"])
def test_hc253_a_bprop_that_is_not_the_derivative(tmp_path, kind):
    ms.set_seed(1)
    net = nn.SequentialCell(nn.Dense(8, 8), Own(kind), nn.Dense(8, 2))

    found = trained(
        tmp_path / "run", net, lambda x, y: ((net(x) - y) ** 2).mean(),
        lambda step: (normal(6, 8, seed=step), normal(6, 2, seed=step + 100)),
    )  # fmt: skip

    assert [found[code].title for code in found if code == "HC253"] == (
        ["the bprop of Own is not the derivative of its construct"] if kind == "short" else []
    )


def of_operation(loss, _, weights):
    gradient = ops.GradOperation(get_by_list=True)(loss, ms.ParameterTuple(weights))
    return lambda *given: (None, gradient(*given))


WAYS = {
    "value_and_grad": ms.value_and_grad,
    "ops": ops.value_and_grad,
    "grad": lambda *how: lambda *given: (None, ms.grad(*how)(*given)),
    "GradOperation": of_operation,
    "has_aux": lambda *how: ms.value_and_grad(*how, has_aux=True),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "beside", "told"),
    [
        *((way, "logits", True) for way in ("value_and_grad", "ops", "grad", "GradOperation")),
        ("has_aux", "logits", False), ("value_and_grad", "stopped", False), ("value_and_grad", "parts", False),
        ("value_and_grad", "nothing", False), ("value_and_grad", "probabilities", False),
        ("value_and_grad", "arguments", False),
    ],
)  # fmt: skip
def test_hc251_what_is_differentiated_beside_the_loss(tmp_path, way, beside, told):
    net = nn.SequentialCell(nn.Dense(8, 8), nn.Dropout(p=0.2), nn.Dense(8, 4)).set_train()

    def loss(x, y):
        logits = net(x)
        found = ops.cross_entropy(logits, y)
        return {
            "logits": (found, logits.abs().mean(), logits), "stopped": (found, ops.stop_gradient(logits)),
            "parts": (found, logits.square().mean()), "nothing": found, "arguments": (found, x * 2),
            "probabilities": (found, ops.softmax(logits, -1)),  # the sum of which is constant
        }[beside]  # fmt: skip

    optimizer = nn.SGD(net.trainable_params(), 1e-2)

    def loop():
        gradient = WAYS[way](loss, None, optimizer.parameters)
        for step in range(3):
            optimizer(gradient(normal(16, 8, seed=step), Tensor(np.arange(16, dtype=np.int32) % 4))[1])

    found = findings(tmp_path / "run", net, loop)
    assert ("HC251" in found) == told
    if told:
        assert (found["HC251"].step, found["HC251"].source.function) == (0, "loss")
        assert "output 1 of shape (), output 2 of shape (16, 4) add" in found["HC251"].why[0]


def test_a_run_whose_steps_are_long_says_that_nothing_was_asked(tmp_path, monkeypatch):
    for name in ("LONGEST_S", "SHARE_OF_FIRST"):
        monkeypatch.setattr(relations, name, 0.0)
    net = nn.Dense(6, 3).set_train()

    def given(step):
        x = np.random.default_rng(step).normal(size=(8, 6)).astype(np.float32)
        return Tensor(x), Tensor(np.arange(8, dtype=np.int32) % 3)

    trained(tmp_path, net, lambda x, y: ops.cross_entropy(net(x), y), given, 4, "auto")

    assert any("not asked for lack of time: all" in said for said in open_run(tmp_path).run.warnings)
