"""What `--health` records, against a direct computation."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import hypocenter
from hypocenter.detect.health_rows import (
    CHOICES,
    ENTROPY,
    GATES,
    HEALTH,
    LOAD,
    LOGITS,
    MOVED,
    NOISE,
    RANK,
    ROUTER,
    UNITS,
    UPDATE,
)
from hypocenter.record.reader import open_run

B, T, D, H = 3, 6, 16, 4


def train(out, model, inputs, *, lr=0.0, n_steps=1, n_micro=1, health="every=1", optimizer=None, **options):
    """Train on the same inputs; everything that there is at the end."""
    torch.manual_seed(1)
    optimizer = optimizer or torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr)
    with hypocenter.watch(model, out=out, health=health, **options) if out else contextlib.nullcontext():
        for _ in range(n_steps):
            for i in range(n_micro):
                given = inputs[i] if isinstance(inputs, list) else inputs
                (model(given).square().mean() / n_micro).backward()
            optimizer.step()
            optimizer.zero_grad()
    return [*model.state_dict().values(), torch.get_rng_state()]


def looks(out, port, site=None):
    found = [row for row in open_run(out).readings() if row.op == HEALTH and row.port == port]
    return [row for row in found if site is None or row.site == site]


class Attention(nn.Module):
    def __init__(self, how, width=D, n_heads=H, n_kv=H):
        super().__init__()
        self.how, self.n_heads, self.n_kv, self.size = how, n_heads, n_kv, width // n_heads
        self.q, self.k = nn.Linear(width, width), nn.Linear(width, n_kv * self.size)
        self.v, self.o = nn.Linear(width, n_kv * self.size), nn.Linear(width, width)

    def heads(self, x):
        b, t, _ = x.shape
        q = self.q(x).view(b, t, self.n_heads, -1).transpose(1, 2)
        k, v = (f(x).view(b, t, self.n_kv, -1).transpose(1, 2) for f in (self.k, self.v))
        return q, k, v

    def mask(self, t):
        causal = torch.ones(t, t, dtype=torch.bool).tril()
        return {"causal": causal, "additive": causal, "bool": causal.roll(1, 0) | torch.eye(t, dtype=torch.bool)}.get(
            self.how.split()[-1], torch.ones(t, t, dtype=torch.bool)
        )

    def forward(self, x):
        q, k, v = self.heads(x)
        t, kind = x.shape[1], self.how.split()[-1]
        if self.how.startswith("eager"):
            k, v = (each.repeat_interleave(self.n_heads // self.n_kv, 1) for each in (k, v))
            scores = q @ k.transpose(-1, -2) / math.sqrt(self.size)
            if kind == "additive":
                scores = scores + torch.zeros(t, t).masked_fill(~self.mask(t), torch.finfo(torch.float32).min)
            elif kind != "full":
                scores = scores.masked_fill(~self.mask(t), -math.inf)
            y = functional.dropout(scores.softmax(-1), 0.0) @ v
        else:
            mask = self.mask(t) if kind == "bool" else None
            y = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=kind == "causal", enable_gqa=self.n_kv != self.n_heads
            )
        return self.o(y.transpose(1, 2).reshape(x.shape))

    @torch.no_grad()
    def direct(self, x):
        """Largest logit and mean relative entropy of each head."""
        q, k, _ = self.heads(x)
        k = k.repeat_interleave(self.n_heads // self.n_kv, 1)
        mask = self.mask(x.shape[1])
        scores = (q @ k.transpose(-1, -2) / math.sqrt(self.size)).masked_fill(~mask, -math.inf)
        p = scores.softmax(-1)
        n = mask.sum(-1)
        entropy = -(p * p.clamp_min(1e-30).log()).sum(-1)[..., n > 1] / n[n > 1].log()
        return scores.amax((0, 2, 3)).tolist(), entropy.mean((0, 2)).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("n_kv", [H, 2])
@pytest.mark.parametrize(
    "how", ["eager full", "eager causal", "eager additive", "fused full", "fused causal", "fused bool"]
)
def test_logits_and_entropy_of_heads(tmp_path, how, n_kv):
    torch.manual_seed(0)
    model, x = Attention(how, n_kv=n_kv), torch.randn(B, T, D) * 3
    train(tmp_path / "run", model, x)

    (logits,), (entropy,) = looks(tmp_path / "run", LOGITS), looks(tmp_path / "run", ENTROPY)
    expected = model.direct(x)
    assert logits.summary.sketch == pytest.approx(expected[0], rel=1e-5)
    assert entropy.summary.sketch == pytest.approx(expected[1], rel=1e-4)
    assert not looks(tmp_path / "run", CHOICES)


class Experts(nn.Module):
    def __init__(self, how, n=5, k=2):
        super().__init__()
        self.how, self.k = how, k
        self.gate = nn.Linear(D, n, bias=False)
        self.experts = nn.ModuleList(nn.Linear(D, D) for _ in range(n))

    def scores(self, x):
        logits = self.gate(x.reshape(-1, D))
        if self.how == "sigmoid":
            return logits.sigmoid()
        return logits if self.how == "late" else logits.softmax(-1)

    def forward(self, x):
        rows, scores = x.reshape(-1, D), self.scores(x)
        if self.how == "first":
            weights, chosen = (each.unsqueeze(1) for each in scores.max(-1))
        else:
            weights, chosen = scores.topk(self.k, -1)
        if self.how == "late":
            weights = weights.softmax(-1)
        if self.how == "measured":
            self.share = (scores.argmax(-1) == 0).float().mean()
        y = torch.zeros_like(rows)
        for e, expert in enumerate(self.experts):
            at, nth = (chosen == e).nonzero(as_tuple=True)
            y = y.index_add(0, at, expert(rows[at]) * weights[at, nth].unsqueeze(1))
        return y


@pytest.mark.parametrize("how", ["early", "late", "sigmoid", "first", "measured"])
def test_routers(tmp_path, how):
    torch.manual_seed(0)
    model, x = Experts(how), torch.randn(B, T, D)
    train(tmp_path / "run", model, x)

    (load,), (router,) = looks(tmp_path / "run", LOAD), looks(tmp_path / "run", ROUTER)
    scores = model.scores(x).detach()
    p = scores.softmax(-1) if how == "late" else scores / scores.sum(-1, keepdim=True)
    k = 1 if how == "first" else 2
    counts = torch.bincount(scores.topk(k, -1).indices.flatten(), minlength=5)
    expected = counts / counts.sum()
    assert load.summary.sketch == pytest.approx(expected.tolist(), rel=1e-6)
    n, chosen, rows, entropy, margin, balance, dead, n_looks = router.summary.sketch
    assert (n, chosen, rows, dead, n_looks) == (5, k, B * T, 0, 1)
    assert entropy == pytest.approx(float(-(p * p.log()).sum(-1).mean() / math.log(5)), rel=1e-5)
    ranked = p.sort(-1, descending=True).values
    assert margin == pytest.approx(float((ranked[:, k - 1] - ranked[:, k]).mean()), rel=1e-4)
    assert balance == pytest.approx(float(5 * (expected * p.mean(0)).sum()), rel=1e-5)
    assert not looks(tmp_path / "run", GATES)
    assert not looks(tmp_path / "run", CHOICES)


class Guessing(nn.Module):
    """Looks at its own classes, for a number that it shows; no expert depends on it."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(D, 7)

    def forward(self, x):
        y = self.head(x)
        self.best = y.softmax(-1).topk(3, -1)
        self.gate = y.sigmoid()
        return y


def test_what_the_loss_does_not_depend_on_is_neither_a_router_nor_a_gate(tmp_path):
    train(tmp_path / "run", Guessing(), torch.randn(B, T, D))

    assert not [row for port in (ROUTER, LOAD, CHOICES, GATES) for row in looks(tmp_path / "run", port)]


def test_a_softmax_that_weighs(tmp_path):
    torch.manual_seed(0)
    linear, x = nn.Linear(D, 5), torch.randn(B, T, D) * 10
    train(tmp_path / "run", nn.Sequential(linear, nn.Softmax(-1), nn.Linear(5, 2)), x)

    (row,) = looks(tmp_path / "run", CHOICES)
    share = float((linear(x).softmax(-1).amax(-1) > 0.999).float().mean())
    assert row.summary.sketch == pytest.approx((B * T, share))
    assert 0 < share < 1


class WrittenOut(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        if self.how == "gelu":
            return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x.pow(3))))
        return x * torch.sigmoid(x)


ACTIVATIONS = {
    "relu": (nn.ReLU(), 0.0),
    "relu in place": (nn.ReLU(inplace=True), 0.0),
    "relu6": (nn.ReLU6(), 0.0),
    "gelu": (nn.GELU(), -3.0),
    "silu": (nn.SiLU(), -6.0),
    "silu in place": (nn.SiLU(inplace=True), -6.0),
    "gelu written out": (WrittenOut("gelu"), -3.0),
    "silu written out": (WrittenOut("silu"), -6.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_units_that_are_off(tmp_path, name):
    torch.manual_seed(0)
    activation, edge = ACTIVATIONS[name]
    linear = nn.Linear(D, 12)
    with torch.no_grad():
        linear.bias[[2, 7]] = -50.0  # dead
    x = torch.randn(64, D) * 4
    train(tmp_path / "run", nn.Sequential(linear, activation, nn.Linear(12, 3)), x, n_steps=5)

    last = looks(tmp_path / "run", UNITS)[-1]
    n, off, dead, n_looks, rows, share, *named = last.summary.sketch
    on = (linear(x) > edge) & ((linear(x) < 6) if name == "relu6" else True)
    assert (n, n_looks, rows) == (12, 5, 64)
    assert off == int((~on.any(0)).sum())
    assert dead == off >= 2
    assert {2, 7} <= set(named)
    assert share == pytest.approx(float(on.float().mean()), abs=2e-3)  # at the edge of a curve that is written out
    assert not looks(tmp_path / "run", GATES)


def test_units_of_convolutions_are_channels(tmp_path):
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 5, 3, padding=1)
    with torch.no_grad():
        conv.bias[4] = -100.0
    model = nn.Sequential(conv, nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 64, 2))
    with torch.no_grad():
        model[1].weight[1], model[1].bias[1] = 0.0, -1.0
    train(tmp_path / "run", model, torch.randn(4, 3, 8, 8), n_steps=4)

    n, _, dead, _, rows, _, *named = looks(tmp_path / "run", UNITS)[-1].summary.sketch
    assert (n, dead, rows, named) == (5, 1, 4 * 64, [1.0])


def test_gates(tmp_path):
    torch.manual_seed(0)
    linear = nn.Linear(D, 8)
    with torch.no_grad():
        linear.bias[:3] = 40.0
    x = torch.randn(32, D)
    train(tmp_path / "run", nn.Sequential(linear, nn.Sigmoid(), nn.Linear(8, 2), nn.Tanh()), x, n_steps=4)

    sigmoid, tanh = (looks(tmp_path / "run", GATES, site)[-1] for site in ("1", "3"))
    y = linear(x).sigmoid()
    assert sigmoid.summary.sketch == pytest.approx((8, float((y * (1 - y) < 0.0025).float().mean()), 3, 4))
    assert tanh.summary.sketch[0] == 2
    assert tanh.summary.sketch[2] == 0


@pytest.mark.parametrize(("width", "rank"), [(16, 16), (16, 2), (200, 5)])
def test_effective_rank(tmp_path, width, rank):
    torch.manual_seed(0)
    basis, _ = torch.linalg.qr(torch.randn(width, rank))
    x = torch.randn(300, rank) @ basis.T
    train(tmp_path / "run", nn.Linear(width, 3), x)

    (row,) = looks(tmp_path / "run", RANK)
    values = np.linalg.svd(x.double().numpy(), compute_uv=False)
    shares = values[values > 1e-5] / values.sum()
    expected = math.exp(-(shares * np.log(shares)).sum())
    found, possible, n = row.summary.sketch
    assert found == pytest.approx(expected, rel=1e-4 if width <= 64 else 0.1)
    assert (possible, n) == (min(width, 64), 300)


def test_updates(tmp_path):
    torch.manual_seed(0)
    model, x = nn.Linear(D, 4), torch.randn(8, D)
    before = model.weight.detach().clone()
    train(tmp_path / "run", model, x, lr=0.3)

    (row,) = looks(tmp_path / "run", UPDATE, "weight")
    moved = float((model.weight.detach() - before).norm())
    assert row.summary.sketch == pytest.approx((float(before.norm()), moved, D * 4, D * 4), rel=1e-5)
    assert row.shape == (4, D)


def test_noise_of_micro_batches(tmp_path):
    torch.manual_seed(0)
    model, inputs = nn.Linear(D, 4), [torch.randn(8, D) for _ in range(3)]
    train(tmp_path / "run", model, inputs, n_micro=3)

    (row,) = looks(tmp_path / "run", NOISE)
    parts = [
        torch.cat([g.flatten() for g in torch.autograd.grad(model(x).square().mean() / 3, model.parameters())])
        for x in inputs
    ]
    small = sum(float(g.square().sum()) for g in parts) / 3
    big = float(sum(parts).div(3).square().sum())
    assert row.summary.sketch == pytest.approx((small, big, 3, 8), rel=1e-5)


def test_a_frozen_parameter_that_moves(tmp_path):
    model = nn.Sequential(nn.Linear(D, D), nn.Linear(D, 2))
    model[0].requires_grad_(False)
    model[0].weight.grad = torch.zeros(D, D)  # an optimizer that still holds it decays it
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    out, x = tmp_path / "run", torch.randn(4, D)
    with hypocenter.watch(model, out=out, health="0,3"):
        for _ in range(4):
            model(x).square().mean().backward()
            optimizer.step()
            model[1].zero_grad()

    (row,) = looks(out, MOVED)
    assert row.site == "0.weight"
    assert row.summary.sketch == pytest.approx((1 - 0.99**3, 0), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["sentinel", "modules"])
def test_training_is_the_same_to_the_bit(tmp_path, level):
    def made():
        torch.manual_seed(0)
        return nn.Sequential(Attention("fused causal"), nn.Dropout(0.3), Experts("early"), nn.Linear(D, D), nn.GELU())

    x = [torch.randn(B, T, D), torch.randn(B, T, D)]
    plain = train(None, made(), x, lr=0.1, n_steps=4, n_micro=2)
    again = train(tmp_path / "run", made(), x, lr=0.1, n_steps=4, n_micro=2, level=level)

    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
    assert len(looks(tmp_path / "run", NOISE)) == 4
    forward = [row for row in open_run(tmp_path / "run").readings(phase="forward") if row.site == "3"]
    assert len(forward) == (2 * 2 * 4 if level == "modules" else 0)  # nothing of the looks is taken for the run's


def test_only_due_steps_are_looked_at(tmp_path):
    train(tmp_path / "run", nn.Sequential(nn.Linear(D, 8), nn.ReLU()), torch.randn(4, D), n_steps=6, health="1,4")

    assert {row.step for row in looks(tmp_path / "run", UNITS)} == {1, 4}
    assert {row.step for row in looks(tmp_path / "run", UPDATE)} == {1, 4}


def test_a_program_that_cannot_be_done_again_is_told_once(tmp_path, capsys):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.numbers = nn.Linear(D, 4), (i for i in range(1000))

        def forward(self, x):
            return self.linear(x) + next(self.numbers)

    train(tmp_path / "run", Counting(), torch.randn(4, D), n_steps=6)

    assert not looks(tmp_path / "run", RANK)
    assert len(looks(tmp_path / "run", UPDATE, "linear.weight")) == 6
    (warning,) = [text for text in open_run(tmp_path / "run").run.warnings if "health" in text]
    assert "could not be looked at" in warning


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cell, self.out = kind(D, D, batch_first=True), nn.Linear(D, 2)

    def forward(self, x):
        return self.out(self.cell(x)[0])


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(D, D), nn.GELU(), Attention("eager causal"))

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(T // 2 + 1, D, dtype=torch.complex64))

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(x, dim=1) * self.weight, n=T, dim=1)


class Halved(nn.Module):
    """Under autocast, where products read copies of parameters."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(Attention("fused causal"), Experts("early"), nn.Linear(D, D), nn.ReLU())

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(x).float()


KINDS = {
    "lstm": (lambda: Recurrent(nn.LSTM), {RANK}),  # one operator on this processor
    "gru": (lambda: Recurrent(nn.GRU), {GATES, RANK}),
    "checkpoint": (Checkpointed, {UNITS, LOGITS, ENTROPY, RANK}),
    "complex": (Spectral, set()),
    "autocast": (Halved, {LOGITS, ENTROPY, LOAD, ROUTER, UNITS, RANK}),
    "float64": (lambda: nn.Sequential(nn.Linear(D, D), nn.SiLU()).double(), {UNITS, RANK}),
    "one dimension": (lambda: nn.Sequential(nn.Flatten(0), nn.ReLU(), nn.Linear(B * T * D, 1)), set()),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", KINDS)
def test_programs_of_all_kinds(tmp_path, kind):
    torch.manual_seed(0)
    make, ports = KINDS[kind]
    x = torch.randn(B, T, D, dtype=torch.float64 if kind == "float64" else torch.float32)
    train(tmp_path / "run", make(), x, n_steps=2, audit="never")

    assert open_run(tmp_path / "run").run.warnings == ()
    assert {row.port for row in open_run(tmp_path / "run").readings() if row.op == HEALTH} >= ports
    for row in looks(tmp_path / "run", LOGITS):
        assert row.dtype == ("bfloat16" if kind == "autocast" else "float32")
