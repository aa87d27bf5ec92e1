"""Models of at least 24 modules in which one, two or three overflow only in float16: exactly those are found."""

import contextlib
import math

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.diagnose.judged_evidence import decode
from hypocenter.record.reader import open_run

N_BLOCKS = 26
WIDTH = 8


class Overflowing(nn.Module):
    """Finite in float32, infinite in float16, and small again at the end."""

    def forward(self, x):
        return (x * 400).pow(2) / 1e5


class Amplifying(nn.Module):
    """Finite forward; in float16 its gradient overflows on the way back at any loss scale."""

    def forward(self, x):
        tiny = x * 1e-6
        return tiny / (tiny.abs() + 2e-6)


class Healthy(nn.Module):
    def forward(self, x):
        return torch.tanh(x)


class Block(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.linear, self.norm, self.inner = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), inner

    def forward(self, x):
        return x + self.inner(self.norm(self.linear(x)))


def planted(culprits, kind=Overflowing, half=False):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    blocks = [Block(kind() if n in culprits else Healthy()) for n in range(N_BLOCKS)]
    model = nn.Sequential(*blocks, nn.Linear(WIDTH, 1))
    return model.half() if half else model


def cure_of(model, folder, *, half=False, n_microbatches=1, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(4, WIDTH)
    autocast = contextlib.nullcontext() if half else torch.autocast("cpu", torch.float16)
    with hypocenter.watch(out=folder, **{"cure": "full", **options}):  # without a limit of time
        for _ in range(n_microbatches):
            with autocast:
                loss = model(x.half() if half else x).float().mean()
            loss.backward()
        optimizer.step()
    ((_, file),) = open_run(folder).evidence_files()
    return decode(file.read_bytes()).cure


CULPRITS = [(0,), (13,), (25,), (3, 4), (0, 25), (7, 19), (1, 2, 3), (0, 12, 25), (5, 11, 23)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("culprits", "half"),
    [*((each, False) for each in CULPRITS), *((each, True) for each in CULPRITS[1::3])],
    ids=lambda each: {False: "autocast", True: "half"}.get(each) if isinstance(each, bool) else str(each),
)
def test_exactly_the_planted_ones_are_found_in_few_replays(culprits, half, tmp_path):
    cure = cure_of(planted(culprits, half=half), tmp_path / "run", half=half)

    assert cure.status == "cured"
    assert cure.targets == tuple(f"{n}.inner" for n in culprits)
    assert cure.verified
    assert cure.minimal
    assert cure.n_candidates >= 24
    assert cure.replays <= 3 * len(culprits) * math.log2(N_BLOCKS) + 10


@pytest.mark.slow
@pytest.mark.parametrize("culprits", [(4,), (4, 20)], ids=str)
def test_gradients_that_overflow_in_backward_only(culprits, tmp_path):
    cure = cure_of(planted(culprits, Amplifying), tmp_path / "run")

    assert cure.targets == tuple(f"{n}.inner" for n in culprits)
    assert cure.replays <= 3 * len(culprits) * math.log2(N_BLOCKS) + 10


def test_every_micro_batch_of_the_step_is_replayed(tmp_path):
    class Another(torch.optim.Optimizer):
        """Of another model: one of the program's own may move parameters before its update, and is looked at early."""

        def __init__(self):
            super().__init__([nn.Parameter(torch.ones(1))], {})

        def step(self, closure=None):
            """Nothing."""

    other = Another()
    cure = cure_of(planted((9,)), tmp_path / "run", n_microbatches=3)

    assert cure.targets == ("9.inner",)
    assert cure.n_microbatches == 3
    assert other.param_groups


def test_what_float32_does_not_mend_is_no_cure(tmp_path):
    class Singular(nn.Module):
        def forward(self, x):
            return torch.log(x - x)

    cure = cure_of(planted((9,), Singular), tmp_path / "run")

    assert cure.status == "no-cure"
    assert not cure.targets
    assert not cure.verified
    assert "modules in float32" in cure.why[0]


def test_without_a_search_nothing_is_claimed(tmp_path):
    assert cure_of(planted((9,)), tmp_path / "run", cure="off") is None


def test_the_alternatives_are_compared_with_float64(tmp_path):
    cure = cure_of(planted((9,)), tmp_path / "run")

    chosen, *others = cure.alternatives
    assert (chosen.action, chosen.targets, chosen.verified) == ("fp32-island", ("9.inner",), True)
    assert 0 < chosen.error < 0.05
    assert chosen.cost > 0
    bf16 = next(other for other in others if other.action == "bf16-island")
    assert bf16.verified
    assert bf16.error > chosen.error
    assert others[-1].action == "clamp"


def test_slow_replays_are_timed_once(tmp_path, monkeypatch):
    monkeypatch.setattr("hypocenter.replay.cure.finder.SHORT_S", 0.0)  # of every real model they are

    cure = cure_of(planted((9,)), tmp_path / "run")

    assert (cure.status, cure.targets) == ("cured", ("9.inner",))
    assert all(each.cost > 0 for each in cure.alternatives if each.verified)


def test_a_search_that_breaks_off_leaves_what_is_known(tmp_path, monkeypatch):
    def broken(*_):
        raise TypeError("the search has a bug")

    monkeypatch.setattr("hypocenter.replay.trials.Trials.cure", broken)

    assert cure_of(planted((9,)), tmp_path / "run") is None

    ((_, file),) = open_run(tmp_path / "run").evidence_files()
    evidence = decode(file.read_bytes())
    assert (evidence.origin.site, evidence.reproduced) == ("9.inner", True)
    assert "the search for a cure broke off (TypeError: the search has a bug)" in evidence.notes
