"""What is kept of a step, and what breaks a replay."""

import gc
import weakref

import pytest
import torch
from torch import nn

from hypocenter.tap.roots import RootTap
from hypocenter.tap.tape import Tape


class Watched:
    """A tape with its hooks, attached for the length of a test."""

    def __init__(self, keep_bytes=1 << 30):
        self.tape = Tape(keep_bytes)
        self.failures = []
        self.begun = []
        self.roots = RootTap(self.tape, on_root=lambda m: None, on_begin=self.begun.append, fail=self.failures.append)

    def __enter__(self):
        self._undo = self.roots.attach()
        return self

    def __exit__(self, *error):
        self._undo()

    def close(self, loss):
        self.roots.suspend_loss_mode()
        return self.tape.close_microbatch(0, 0, [loss], [None])


def test_only_outermost_calls_are_kept_and_results_are_not():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    x = torch.randn(3, 4)

    with Watched() as watched:
        y = model(x)
        result = weakref.ref(y)
        microbatch = watched.close(y.sum())
        names = [type(event.function).__name__ for event in watched.tape.events]
        del y
        gc.collect()

        assert names[0] == "Sequential"
        assert len(names) == 2  # the call, and sum()
        assert microbatch.why_not == ""
        assert result() is None
    assert watched.failures == []


def test_loss_code_is_noted_with_its_line():
    model = nn.Linear(4, 1)

    with Watched() as watched:
        loss = model(torch.randn(3, 4)).pow(2).mean()  # this line
        microbatch = watched.close(loss)

        events = [event for _, event in watched.tape.slice(microbatch)]
        assert [getattr(e.function, "__name__", "call") for e in events[1:]] == ["pow", "mean"]
        assert {e.code.co_filename for e in events[1:]} == {__file__}


def test_events_the_loss_does_not_depend_on_are_left_out():
    model = nn.Linear(4, 1)

    with Watched() as watched:
        y = model(torch.randn(3, 4))
        _ = (y * 3).sum()
        microbatch = watched.close(y.sum())

        assert len(watched.tape.slice(microbatch)) == 2


def test_evaluation_is_not_kept():
    model = nn.Linear(4, 1)

    with Watched() as watched:
        with torch.no_grad():
            model(torch.randn(3, 4))

        assert watched.tape.events == []
        assert watched.begun == [False]


def test_users_function_modes_nest_as_if_ours_were_not_there():
    model = nn.Linear(4, 1)
    with Watched() as watched:
        with torch.device("cpu"):
            y = model(torch.randn(3, 4))
        loss = y.sum()
        watched.close(loss)

        modes = map(torch._C._get_function_stack_at, range(torch.overrides._len_torch_function_stack()))
        assert not any(mode is watched.roots._mode for mode in modes)
        assert len(watched.tape.events) == 2  # the call, and sum()


def test_an_input_changed_in_place_is_noticed():
    model = nn.Linear(4, 1)
    x = torch.randn(3, 4)

    with Watched() as watched:
        loss = model(x).sum()
        microbatch = watched.close(loss)
        assert watched.tape.mutated(watched.tape.slice(microbatch)) == ""
        x.add_(1)

        assert "changed in place" in watched.tape.mutated(watched.tape.slice(microbatch))


def test_a_custom_function_between_model_and_loss_cannot_be_replayed():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    model = nn.Linear(4, 1)

    with Watched() as watched:
        loss = Double.apply(model(torch.randn(3, 4))).sum()
        microbatch = watched.close(loss)

    assert "cannot repeat" in microbatch.why_not


def test_inputs_beyond_the_budget_are_let_go():
    model = nn.Linear(1000, 1)

    with Watched(keep_bytes=1000) as watched:
        microbatch = watched.close(model(torch.randn(3, 1000)).sum())

    assert "keep_mb" in microbatch.why_not
    assert watched.tape.events == []


def test_an_exception_in_forward_leaves_the_tap_ready():
    class Fails(nn.Module):
        def forward(self, x):
            raise ValueError("mine")

    good = nn.Linear(4, 1)
    with Watched() as watched:
        with pytest.raises(ValueError, match="mine"):
            Fails()(torch.randn(1))
        microbatch = watched.close(good(torch.randn(3, 4)).sum())

    assert microbatch.why_not == ""
    assert watched.failures == []
