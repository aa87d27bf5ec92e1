"""Samples that meet in the loop, before the model or between it and the loss; and who means it, or only seems to."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run
from hypocenter.relations import losses
from hypocenter.relations.earlier import Earlier
from hypocenter.relations.loop import look_at_loop
from hypocenter.relations.loop_again import Again
from hypocenter.tap.loop_tape import LoopTape

N = 8  # samples, and as many features, steps and classes
TABLE = torch.linspace(0.9, 0.1, 50)
STATES, REWARDS = torch.randn(64, N, generator=torch.Generator().manual_seed(1)), torch.arange(64.0)[:, None]
PLACES = torch.arange(float(N))


class Net(nn.Module):
    """What is trained: it is also given one number a sample."""

    def __init__(self, n_in=N):
        super().__init__()
        self.first, self.level, self.last = nn.Linear(n_in, 16), nn.Linear(1, 16), nn.Linear(16, N)

    def forward(self, x, level):
        return self.last(torch.tanh(self.first(x) + self.level(level.float()[:, None])))


class Value(nn.Module):
    """One number a sample, in a column."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(N, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        return self.layers(x)


def told(out, model, step, n_steps=10):
    """Train with Hypocenter on, and return what was found of HC241: (severity, line of code)."""
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(N * n_steps, N), torch.randn(N * n_steps))
    loader = torch.utils.data.DataLoader(data, batch_size=N, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with hypocenter.watch(model, optimizer, out=str(out)):
        for x, y in loader:
            loss = step(model, x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    findings = [each for each in diagnose(open_run(out)).findings if each.code == "HC241"]
    return [(each.severity, each.source.text) for each in findings]


def noisy_by_feature(model, x, _):
    t = torch.randint(50, (N,))
    noise = torch.randn_like(x)
    level = TABLE[t]
    noisy = level * x + (1 - level) * noise
    return functional.mse_loss(model(noisy, t), noise)


def noisy_in_place(model, x, _):
    t = torch.empty(N).uniform_()
    noisy = x.clone()
    noisy.mul_(t)
    return functional.mse_loss(model(noisy, t), x)


def weighed_by_feature(model, x, _):
    t = torch.rand(N)
    each = functional.mse_loss(model(x[:, :5], t), x, reduction="none")
    each = each * (1 + t)
    return each.mean()


def mean_of_features(model, x, y):
    x = x - x.mean(1)
    return functional.mse_loss(model(x, y), y[:, None].expand(N, N))


@pytest.mark.parametrize(
    ("step", "n_in", "line"),
    [
        (noisy_by_feature, N, "noisy = level * x + (1 - level) * noise"),
        (noisy_in_place, N, "noisy.mul_(t)"),
        (weighed_by_feature, 5, "each = each * (1 + t)"),
        (mean_of_features, N, "x = x - x.mean(1)"),
    ],
)
def test_what_runs_along_the_features_is_told_with_its_line(tmp_path, step, n_in, line):
    assert told(tmp_path, Net(n_in), step) == [("warning", line)]


def of_memory(model):
    """Values of states that were taken from a memory, without their column, and what they should be, in one."""
    rows = torch.randint(64, (N,))
    with torch.no_grad():
        target = REWARDS[rows] + 0.9 * model(STATES[rows].flip(1))
    return model(STATES[rows]).squeeze(1), target


def pairs_of_values(model, _, __):
    value, target = of_memory(model)
    error = value - target
    return torch.where(error.abs() < 1, 0.5 * error**2, error.abs() - 0.5).mean()


def pairs_in_a_function(model, _, __):
    return functional.smooth_l1_loss(*of_memory(model))


def pairs_in_a_module(model, _, __):
    return nn.HuberLoss()(*of_memory(model))


def pairs_with_returns(model, _, __):
    states = STATES[torch.randint(64, (N,))]
    returns = torch.tensor([float(each) for each in states.sum(1)])
    return (returns - model(states)).pow(2).mean()


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(
    ("step", "line"),
    [
        (pairs_of_values, "error = value - target"),
        (pairs_in_a_function, "return functional.smooth_l1_loss(*of_memory(model))"),
        (pairs_in_a_module, "return nn.HuberLoss()(*of_memory(model))"),
        (pairs_with_returns, "return (returns - model(states)).pow(2).mean()"),
    ],
)
def test_pairs_of_all_samples_that_are_averaged_are_told(tmp_path, monkeypatch, step, line):
    monkeypatch.setattr(losses.pairing, "crosswise", lambda *_: None)  # HC252: what it knows is not told twice
    monkeypatch.setattr(losses, "crossed", lambda *_: None)

    assert told(tmp_path, Value(), step) == [("warning", line)]


def test_what_is_known_of_labels_is_not_told_twice(tmp_path):
    assert told(tmp_path, Value(), pairs_of_values) == []
    assert [each.code for each in diagnose(open_run(tmp_path)).findings if each.severity == "warning"] == ["HC252"]


# who must not be accused


def noisy(model, x, _):
    t = torch.randint(50, (N,))
    level = TABLE[t][:, None]
    noise = torch.randn_like(x)
    return functional.mse_loss(model(level * x + (1 - level) * noise, t), noise)


def constants_of_features(model, x, y):
    x = (x - PLACES) * torch.ones(N) / torch.arange(1, N + 1)
    return functional.mse_loss(model(x + torch.linspace(0, 1, N), y), x)


def drawn_features(model, x, y):
    mask = (torch.rand(x.shape[1]) < 0.5).float()
    scale = 1 + 0.1 * torch.randn(N)
    return functional.mse_loss(model(x * mask * scale, y), x)


def statistics_of_the_batch(model, x, y):
    x = (x - x.mean(0)) / (x.std(0) + 1e-3)
    y = (y - y.mean()) / y.std()
    return functional.mse_loss(model(x / x.abs().max(0).values, y), x)


def mixup(model, x, y):
    rows, share = torch.randperm(N), torch.rand(N, 1)
    x, y = share * x + (1 - share) * x[rows], share[:, 0] * y + (1 - share[:, 0]) * y[rows]
    return functional.mse_loss(model(x, y), x)


def classes_with_weights(model, x, y):
    weights = 1 / (1 + torch.bincount(torch.arange(N) % 3, minlength=N).float())
    log_p = model(x, y).log_softmax(1) * weights
    labels = x.argmax(1)
    counts = torch.bincount(labels, minlength=N).float()
    return -(log_p - (counts + 1).log()).gather(1, labels[:, None]).mean()


def contrasted(model, x, y):
    out = functional.normalize(model(x, y), dim=1)
    near = out @ functional.normalize(model(x + 0.1 * torch.randn_like(x), y), dim=1).T
    labels = y.sign()
    same = (labels[:, None] == labels).float()
    return -(near.log_softmax(1) * same / same.sum(1, keepdim=True)).sum(1).mean() + (near - near.diag()).mean()


def distances(model, x, y):
    out, other = model(x, y), model(x.flip(1), y)
    squares = out.pow(2).sum(1, keepdim=True) + other.pow(2).sum(1) - 2 * out @ other.T
    pairs = (out[:, None, :] - out).pow(2).sum(-1)
    return torch.exp(-squares.clamp(0, 1)).mean() + torch.exp(-pairs).mean() + (y[:, None] - y).abs().mean()


def causal(model, x, y):
    mask = torch.ones(N, N).tril()
    keeps = torch.arange(N) < (1 + 7 * torch.rand(N))[:, None]
    return functional.mse_loss(model(x * mask * keeps + torch.arange(N), y), x)


def weights_of_samples(model, x, y):
    weight = y.sigmoid()
    each = functional.mse_loss(model(x, y), x, reduction="none").mean(1)
    return (each * weight / weight.sum()).sum()


def images(model, x, y):
    picture = x.view(N, 1, 1, N).expand(N, 1, N, N)
    picture = picture * torch.rand(N, 1, 1, 1) + torch.rand(N)[:, None, None, None]
    return functional.mse_loss(model(picture.mean((1, 2)), y), x)


def only_measured(model, x, y):
    out = model(x, y)
    _ = (out * y).mean().item()
    return functional.mse_loss(out, x)


def averaged_weights(model, x, y):
    with torch.no_grad():
        for p in model.parameters():
            p.detach().clone().mul_(0.9).add_(p, alpha=0.1)
    return functional.mse_loss(model(x, y), x)


@pytest.mark.parametrize(
    "step",
    [
        noisy, constants_of_features, drawn_features, statistics_of_the_batch, mixup, classes_with_weights, contrasted,
        distances, causal, weights_of_samples, images, only_measured, averaged_weights,
    ],
)  # fmt: skip
def test_who_keeps_samples_apart_or_means_it_is_not_accused(tmp_path, step):
    assert told(tmp_path, Net(), step) == []


def pairs_that_are_ranked(model, x, y):
    scores = model(x)
    further = scores - scores.squeeze(1)
    return functional.softplus(-further * (y[:, None] - y).sign()).mean()


def returns_over_time(model, x, y):
    values = model(x).squeeze(1)
    with torch.no_grad():
        errors = y[:-1] + 0.9 * values[1:] - values[:-1]
        advantages, last = torch.zeros(N), torch.zeros(())
        for t in reversed(range(N - 1)):
            advantages[t] = last = errors[t] + 0.8 * last
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
    return -(values * advantages).mean()


def levels_of_quantiles(model, x, y):
    levels = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
    error = y[:, None] - model(x)
    return torch.maximum(levels * error, (levels - 1) * error).mean()


@pytest.mark.parametrize("step", [pairs_that_are_ranked, returns_over_time, levels_of_quantiles])
def test_pairs_that_are_meant_are_not_told(tmp_path, step):
    assert told(tmp_path, Value(), step) == []


def test_nothing_is_noted_at_steps_that_are_not_looked_at(tmp_path, monkeypatch):
    noted = []
    monkeypatch.setattr(LoopTape, "note", lambda self, *_, **__: noted.append(self))

    told(tmp_path, Net(), noisy, n_steps=14)

    assert len({id(each) for each in noted}) <= 4  # tapes of steps 1, 2, 4, 8


@pytest.mark.parametrize("step", [noisy_by_feature, noisy_in_place])
def test_training_is_the_same_to_the_bit(tmp_path, step):
    def trained(out):
        torch.manual_seed(0)
        model, losses = Net(), []
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        handle = hypocenter.watch(model, optimizer, out=str(out)) if out else None
        for _ in range(6):
            loss = step(model, torch.randn(N, N), None)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if handle is not None:
            handle.close()
        return losses, torch.get_rng_state(), [p.detach().clone() for p in model.parameters()]

    plain, watched = trained(None), trained(tmp_path)

    assert plain[0] == watched[0]
    assert torch.equal(plain[1], watched[1])
    assert all(torch.equal(a, b) for a, b in zip(plain[2], watched[2], strict=True))


def test_what_fails_is_let_go_of_and_training_goes_on(tmp_path, monkeypatch):
    def fails(self, *_, **__):
        raise RuntimeError("of ours")

    monkeypatch.setattr(LoopTape, "note", fails)

    assert told(tmp_path, Net(), noisy_by_feature) == []


def test_a_look_that_fails_leaves_relations_of_the_model_on(tmp_path, monkeypatch):
    def fails(self, *_):
        raise RuntimeError("of ours")

    monkeypatch.setattr(Again, "goes_along", fails)

    assert told(tmp_path, Net(), noisy_by_feature) == []
    looked = [row.step for row in open_run(tmp_path).readings() if row.site == "relations"]
    assert looked[:2] == [1, 2]


def test_a_tape_that_is_too_large_is_let_go_of():
    tape = LoopTape()
    x = torch.randn(N, N)
    for _ in range(3000):
        tape.note(torch.neg, "neg", (x,), {}, torch.neg(x), sys._getframe(), writes=False)

    assert tape.is_full
    assert not tape.values
    assert look_at_loop(Again(tape, N, lambda _: True), Earlier()) == []
