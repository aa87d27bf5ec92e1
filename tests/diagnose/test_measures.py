"""Measures of health on real recordings: each with a fault that was planted, and a healthy twin that has all of it."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

import hypocenter
from hypocenter.detect.forecast import MIN_POINTS
from hypocenter.detect.local_rows import LOCAL
from hypocenter.diagnose.health import CATALOGUE, Answer, answer, layer_of, measures
from hypocenter.diagnose.measures.gradient_noise import Norms, noise_scale
from hypocenter.diagnose.recorded_health import Recorded
from hypocenter.manual import HEADINGS
from hypocenter.nouns import Reading, StepRecord, Summary
from hypocenter.record.reader import open_run
from hypocenter.record.run_file import finish_run, start_run
from hypocenter.record.writer import Writer

D, CLASSES, EXPERTS, STEPS = 16, 5, 4, 16


class Everything(nn.Module):
    """A frozen embedding, attention, a gate, experts, a ReLU: what all measures look at."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, D).requires_grad_(False)
        self.norm, self.qkv, self.o = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.gate, self.up, self.act, self.down = nn.Linear(D, D), nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, D)
        self.router = nn.Linear(D, EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(D, D) for _ in range(EXPERTS))
        self.head = nn.Linear(D, CLASSES)

    def forward(self, tokens):
        x = self.embed(tokens)
        q, k, v = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.o(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + self.gate(x).sigmoid() * self.down(self.act(self.up(x)))
        rows = x.flatten(0, 1)
        weights, chosen = self.router(rows).softmax(-1).topk(2, -1)
        for e, expert in enumerate(self.experts):
            at, nth = (chosen == e).nonzero(as_tuple=True)
            rows = rows.index_add(0, at, expert(rows[at]) * weights[at, nth].unsqueeze(1))
        return self.head(rows.view_as(x).mean(1))


def train(out, plant=lambda model: None, *, each=lambda model, step: None, lr=1e-3, n_steps=STEPS, **options):
    torch.manual_seed(0)
    model = Everything()
    plant(model)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr)
    generator = torch.Generator().manual_seed(1)
    with hypocenter.watch(model, out=out, **{"health": "every=1", **options}):
        for step in range(n_steps):
            for _ in range(2):
                tokens = torch.rand(16, 20, generator=generator).argsort(1)[:, :8]  # none twice: attention can be sure
                loss = functional.cross_entropy(model(tokens), tokens.sum(1) % CLASSES)
                (loss / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                each(model, step)
    return health(out)


def health(out) -> Answer:
    recording = open_run(out)
    return answer(recording.run.name, Recorded(recording))


def out_of_range(found: Answer) -> set[tuple[str, str]]:
    return {(value.measure, value.site) for value in found.values if value.status == "out-of-range"}


def said(found: Answer, measure: str, site: str) -> str:
    return next(value.says for value in found.values if (value.measure, value.site) == (measure, site))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    return train(tmp_path_factory.mktemp("healthy") / "run", level="modules")


def test_a_healthy_run_has_values_of_all_measures_and_all_in_range(healthy):
    assert (healthy.status, out_of_range(healthy), healthy.missing) == ("in-range", set(), ())
    assert {value.measure for value in healthy.values} == {entry.name for entry in measures()}
    assert said(healthy, "moved-frozen", "") == "1 frozen parameters stayed as they are"


def set_(parameter, value, at=slice(None)):
    with torch.no_grad():
        parameter[at] = value


def dead(model):
    set_(model.up.bias, -50.0)


def saturated(model):
    set_(model.gate.bias, 30.0)


def certain_heads(model):
    with torch.no_grad():
        model.qkv.weight[: 2 * D] *= 1000


def idle_expert(model):
    set_(model.router.bias, -30.0, 3)


def one_expert(model):
    set_(model.router.bias, 30.0, 2)


def certain_router(model):
    with torch.no_grad():
        model.router.weight *= 300


def massive(model):
    set_(model.down.bias, 8000.0, 3)


def unused(model):
    model.spare = nn.Linear(D, D)


PLANTED = {
    "dead-units": (dead, "act", "64 of 64 units of relu never on in 4 looks (0 to 7 and more)"),
    "saturated-gates": (saturated, "", "16 of 16 units always"),
    "attention-entropy": (certain_heads, "", " of 4 below 0.02"),
    "expert-load": (idle_expert, "", "1 got nothing in 4 looks (now 3)"),
    "router-certainty": (certain_router, "", "of 4"),
    "balance-loss": (one_expert, "", "1 is balanced, 4 is one expert for all"),
    "massive-activations": (massive, "down", "times the median"),
    "never-learns": (unused, "spare.weight", "it had no gradient in 10 steps"),
}


@pytest.mark.slow
@pytest.mark.parametrize("measure", PLANTED)
def test_what_was_planted_is_out_of_range(tmp_path, measure):
    plant, site, words = PLANTED[measure]
    found = train(tmp_path / "run", plant, n_steps=10, level="modules", schedule="every=5")

    assert (measure, site) in out_of_range(found)
    assert words in said(found, measure, site)
    assert found.status == "out-of-range"


@pytest.mark.night
def test_logits_that_grow_are_forecast(tmp_path):
    """From 2 on by 5 % a step, of which 128 is 85 steps away."""

    def grow(model, step):
        model.qkv.weight[:D] *= 1.05
        model.qkv.bias[:D] *= 1.05

    found = train(
        tmp_path / "run", lambda model: set_(model.qkv.bias, 1.0, slice(2 * D)), each=grow, lr=0.0, n_steps=60
    )

    (value,) = [value for value in found.values if value.measure == "attention-logits"]
    assert value.status == "out-of-range"
    assert value.value < 128
    due = 59 + math.log(128 / value.value) / math.log(1.05)
    near, far = value.says.split("(")[-1].split(")")[0].split(" to ")
    assert float(near) - 1 <= due <= float(far)
    assert MIN_POINTS <= 60


def test_logits_that_have_left(tmp_path):
    found = train(tmp_path / "run", certain_heads, n_steps=2)

    (value,) = [value for value in found.values if value.measure == "attention-logits"]
    assert value.status == "out-of-range"
    assert "at 128 or more" in value.says


@pytest.mark.night
def test_weights_and_outputs_that_grow(tmp_path):
    def grow(model, step):
        model.o.weight *= 1.3
        model.o.bias *= 1.3

    found = train(tmp_path / "run", each=grow, lr=1e-4, level="modules")

    assert {("norm-growth", "o"), ("norm-growth", "o.weight")} <= out_of_range(found)
    assert ("norm-growth", "up.weight") not in out_of_range(found)


@pytest.mark.night
def test_updates_that_are_too_large(tmp_path):
    found = train(tmp_path / "run", lr=0.5, n_steps=6)

    assert ("update-ratio", "up.weight") in out_of_range(found)


def test_a_rank_that_falls(tmp_path):
    def collapse(model, step):
        if step >= 6:
            model.up.weight[1:] = model.up.weight[:1]
            model.up.bias[:] = 0.0

    found = train(tmp_path / "run", each=collapse, lr=0.0, n_steps=10)

    assert ("effective-rank", "down") in out_of_range(found)
    assert said(found, "effective-rank", "down").startswith("1.0 of 64 directions")


def test_a_frozen_parameter_that_moves(tmp_path):
    found = train(tmp_path / "run", each=lambda model, step: model.embed.weight.mul_(0.999), n_steps=4)

    assert ("moved-frozen", "embed.weight") in out_of_range(found)
    assert said(found, "moved-frozen", "embed.weight").startswith("it is frozen and changed by 1e-3")


@pytest.mark.night
def test_the_noise_scale_is_that_of_single_samples(tmp_path):
    """Of a mean of targets: the gradient is w minus the mean, its covariance that of the targets."""
    torch.manual_seed(0)
    n, per = 400, 4
    weight = nn.Parameter(torch.zeros(50))
    data = torch.randn(n, 2, per, 50) + 0.7
    model = nn.Module()
    model.weight, model.forward = weight, lambda x: (weight - x).square().sum(-1).mean() / 2
    optimizer = torch.optim.SGD([weight], lr=0.0)
    with hypocenter.watch(model, out=tmp_path / "run", health="every=1"):
        for parts in data:
            for part in parts:
                (model(part) / 2).backward()
            optimizer.step()
            optimizer.zero_grad()

    (value,) = [value for value in health(tmp_path / "run").values if value.measure == "gradient-noise"]
    assert value.value == pytest.approx(50 * 1.0 / (50 * 0.7**2), rel=0.1)
    assert value.status == "in-range"


def test_the_estimates_of_the_noise_scale():
    """Signal 3, noise of one part 8: of n parts the mean has 3 + 8 / n, each part 3 + 8."""
    noise, signal = noise_scale([Norms(step=0, small=11.0, big=3 + 8 / n, n=n) for n in (2, 4, 8)])

    assert (noise, signal) == pytest.approx((8.0, 3.0))


@pytest.mark.parametrize("lacks", ["", "one", "shards"])
def test_noise_of_ranks(tmp_path, lacks):
    """Two ranks, two parameters: each rank's square norm is 11, that of the mean 7.

    Where one is missing, or a rank knows the norm of its shard only: nothing.
    """
    start_run(tmp_path / "run", ["train.py"], {}, 2, {})
    for rank in range(2):
        norm = math.sqrt(3.0 + rank if lacks == "shards" else 7.0)
        writer = Writer(tmp_path / "run", rank=rank, warn=lambda text: print(text, file=sys.stderr))
        rows = [
            Reading(
                step=0, microbatch=0, phase="grad", site=site, port=LOCAL, order=i, summary=Summary(n=1, sumsq=sumsq)
            )
            for i, (site, sumsq) in enumerate((("a", 4.0), ("b", 7.0)))
            if not (lacks == "one" and rank == 1 and site == "b")
        ]
        writer.write(rows, StepRecord(step=0, n_microbatches=1, grad_norm=norm))
        writer.close()
    finish_run(tmp_path / "run", "finished", 0)

    found = [value for value in health(tmp_path / "run").values if value.measure == "gradient-noise"]
    assert [value.value for value in found] == ([] if lacks else [pytest.approx(8.0 / 3.0)])


def test_what_was_not_recorded_is_told(tmp_path):
    found = train(tmp_path / "run", health="never", n_steps=8)

    options = {one.measure: one.option for one in found.missing}
    assert options["dead-units"] == "run --health every=50"
    assert options["massive-activations"] == "run --level modules"
    assert {value.measure for value in found.values} == {"never-learns"}


def test_few_looks_accuse_nobody(tmp_path):
    found = train(tmp_path / "run", dead, n_steps=3)

    assert "too few looks" in said(found, "dead-units", "act")
    assert "dead-units" not in {measure for measure, _ in out_of_range(found)}


def test_each_measure_has_a_page_with_its_source():
    for entry in measures():
        assert not entry.manual.missing, entry.name
        assert [heading for heading, _ in entry.manual.sections] == list(HEADINGS)
    assert len({entry.column for entry in measures()}) == len(measures())


def test_a_measure_of_a_third_party_that_fails(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from hypocenter.diagnose.health import measure\n"
        "@measure('mine', column='mine', needs='', order=999)\n"
        "def take(recorded):\n    'Mine.'\n    raise KeyError('oh')\n    yield\n"
    )
    monkeypatch.setattr(CATALOGUE, "_entries", dict(CATALOGUE.entries()))
    train(tmp_path / "run", n_steps=2)
    recording = open_run(tmp_path / "run")
    found = answer("run", Recorded(recording), [str(tmp_path / "mine.py")])

    (missing,) = [one for one in found.missing if one.measure == "mine"]
    assert missing.why == "the measure failed: KeyError: 'oh'"


@pytest.mark.parametrize(
    ("site", "layer"),
    [("transformer.h.3.attn.c_attn", "transformer.h.3"), ("lm_head", "lm_head"), ("", "(model)"), ("0.weight", "0")],
)
def test_layers(site, layer):
    assert layer_of(site) == layer
