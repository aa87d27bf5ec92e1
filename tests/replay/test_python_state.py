"""What a model keeps in Python is after a replay as it was before."""

import collections
import contextlib
import ctypes
import random

import numpy as np
import pytest
import torch
from torch import nn

from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.python_state import TENSOR_BYTES
from hypocenter.replay.torch_state import kept

n_global = 0
seen_by_all = []


class Statistics:
    def __init__(self):
        self.total, self.last = 0.0, []


class Busy(nn.Module):
    """Changes, in forward, one thing of each kind that programs keep."""

    def __init__(self):
        super().__init__()
        self.part = nn.Linear(2, 2)
        self.n_calls = 0
        self.losses = []
        self.by_name = {"a": [1]}
        self.recent = collections.deque(maxlen=2)
        self.counts = collections.Counter()
        self.kinds = {"x"}
        self.average = torch.zeros(2)
        self.table = np.zeros(2)
        self.own = torch.Generator().manual_seed(0)
        self.numbers, self.old, self.python = np.random.default_rng(0), np.random.RandomState(0), random.Random(0)
        self.words = iter(["a", "b", "c", "d"])
        self.statistics = Statistics()

    def forward(self, x):
        global n_global
        n_global += 1
        seen_by_all.append(n_global)
        self.n_calls += 1
        self.losses.append(self.n_calls)
        self.by_name["a"].append(2)
        self.by_name["new"] = 1
        self.recent.append(self.n_calls)
        self.counts["x"] += 1
        self.kinds.add(self.n_calls)
        self.average += 1
        self.table += 1
        self.cached = torch.ones(1)
        drawn = (torch.rand(1, generator=self.own).item(), self.numbers.random(), self.old.rand(), self.python.random())
        self.statistics.total += 1
        self.statistics.last.append(drawn)
        print("forward", self.n_calls, drawn)
        return self.part(x) * len(next(self.words))


def state_of(model):
    plain = {k: v for k, v in vars(model).items() if k not in vars(nn.Module())}
    plain |= {"statistics": vars(model.statistics), "own": model.own.get_state(), "words": model.words.__reduce__()}
    plain |= {"numbers": model.numbers.bit_generator.state, "old": model.old.get_state()}
    plain |= {"python": model.python.getstate(), "global": n_global, "all": seen_by_all}
    return repr(plain)


def test_all_that_forward_changes_is_put_back(capsys):
    model = Busy()
    model(torch.ones(2))
    kept_list, before = model.losses, state_of(model)
    printed = capsys.readouterr().out

    with kept(model.modules()):
        model(torch.ones(2))
        model(torch.ones(2))
        assert state_of(model) != before

    assert state_of(model) == before
    assert model.losses is kept_list
    assert "forward 1" in printed
    assert capsys.readouterr().out == ""


def test_what_hooks_and_inner_modules_keep_is_put_back():
    found, n = [], 0

    def note(*_):
        nonlocal n
        n += 1
        found.append(n)

    inner = Busy()
    model = nn.Sequential(nn.Linear(2, 2), inner)
    model[0].register_forward_hook(note)
    model(torch.ones(2))
    before = state_of(inner)

    with kept(model.modules()):
        model(torch.ones(2))

    assert (n, found) == (1, [1])
    assert state_of(inner) == before


def test_put_back_after_an_exception_too():
    model = Busy()
    before = state_of(model)

    with contextlib.suppress(ZeroDivisionError), kept(model.modules()):
        model(torch.ones(2))
        raise ZeroDivisionError

    assert state_of(model) == before


@pytest.mark.parametrize(
    "value", [torch.nn.Parameter(torch.ones(2)), list(range(20_000)), collections.namedtuple("P", "x")(1)]
)
def test_parameters_and_data_are_left_alone(value):
    model = nn.Linear(2, 2)
    model.held = value

    with kept(model.modules()), torch.no_grad():
        model.weight.add_(1)
        expected = model.weight.clone()

    assert torch.equal(model.weight, expected)
    assert model.held is value


def test_a_long_log_is_cut_back():
    model = nn.Linear(2, 2)
    model.log = list(range(20_000))

    with kept(model.modules()):
        model.log.append(1)

    assert len(model.log) == 20_000


def test_what_cannot_be_put_back_is_told(tmp_path):
    model = nn.Linear(2, 2)
    with kept(model.modules(), must_be_all=True):
        pass

    model.cache = torch.empty(TENSOR_BYTES + 1, dtype=torch.uint8)
    with pytest.raises(ReplayImpossible, match="64 MiB"), kept(model.modules(), must_be_all=True):
        pass

    model.cache = None
    with (tmp_path / "log").open("w") as model.log:
        with pytest.raises(ReplayImpossible, match="TextIOWrapper"), kept(model.modules(), must_be_all=True):
            pass
        with kept(model.modules()):
            pass


def test_a_tensor_that_a_kernel_has_written_unseen_is_put_back_and_looks_untouched():
    class Scales(nn.Module):
        """Keeps a history of largest values, as FP8 layers do, written by a kernel of an extension."""

        def __init__(self):
            super().__init__()
            self.amax_history = torch.zeros(4)

        def forward(self, x):
            ctypes.memset(self.amax_history.data_ptr(), 1, 16)
            return x

    module = Scales()
    version = module.amax_history._version

    with kept(module.modules()):
        module(torch.ones(2))
        assert module.amax_history.any()

    assert not module.amax_history.any()
    assert module.amax_history._version == version
