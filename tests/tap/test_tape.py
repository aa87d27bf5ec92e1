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
        self.roots.suspend()
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
        assert not any(mode is watched.roots.user_code for mode in modes)
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


def test_what_no_backward_has_gone_through_outlives_an_update_and_no_longer():
    generator, disc, x = nn.Linear(4, 2), nn.Linear(2, 1), torch.randn(3, 4)

    with Watched() as watched:
        tape = watched.tape
        for _ in range(3):
            fake = generator(x)
            tape.spend(watched.close(disc(fake.detach()).sum()))
            tape.clear()

            assert [event.module for event in tape.events] == [generator]
            assert tape.slot(fake) == 0  # numbers of slots do not grow
            microbatch = watched.close(disc(fake).sum())
            assert [event.module for _, event in tape.slice(microbatch)][:2] == [generator, disc]
            tape.spend(microbatch)
            tape.clear()

            assert tape.events == []


def test_what_was_made_before_an_update_goes_with_its_last_user():
    generator, x = nn.Linear(4, 2), torch.randn(3, 4)

    with Watched() as watched:
        fake = generator(x)
        watched.tape.clear()
        kept = len(watched.tape.events)
        del fake
        watched.tape.clear()

    assert kept == 1
    assert watched.tape.events == []


def test_what_a_micro_batch_does_not_need_does_not_keep_it_from_a_replay():
    model = nn.Linear(4, 1)
    before = (torch.randn(3, requires_grad=True) * 2).exp()  # nobody watched yet

    with Watched() as watched:
        loss = model(torch.randn(3, 4)).mean()
        beside = before.detach() + 1  # of a value that nobody saw computed, but no gradient goes there
        constant, through = loss + beside.mean(), loss + before.sum() * 3
        why_not = [watched.close(each).why_not for each in (loss, constant, through)]

    assert why_not[:2] == ["", ""]
    assert "was computed by code that a replay cannot repeat" in why_not[2]


def test_what_a_module_is_called_with_is_no_parameter_though_it_wants_a_gradient():
    stage = nn.Linear(4, 1)
    received = torch.randn(3, 4, requires_grad=True)

    with Watched() as watched:
        watched.close(stage(received).mean())

        assert not watched.tape.leaves.keys() & {id(received)}


def test_an_operation_that_gives_back_what_it_was_given_did_not_make_it():
    model = nn.Linear(4, 1)
    target = torch.randn(3, 1)

    with Watched() as watched:
        for _ in range(2):
            out, same = torch.broadcast_tensors(model(torch.randn(3, 4)), target)
            watched.tape.spend(watched.close((out - same).sum()))
            watched.tape.clear()
            watched.roots.begin_step()

        assert watched.tape.slot(target) is None
        assert watched.tape.events == []


def test_a_call_without_gradients_is_kept_beside_the_step():
    target = nn.Linear(4, 1)

    with Watched() as watched:
        with torch.no_grad():
            y = target(torch.randn(3, 4))

        assert watched.begun == [False]
        assert watched.tape.events == []
        assert watched.roots.prelude.slot(y) is not None


@pytest.mark.parametrize("is_operand_first", [False, True])
def test_an_input_whose_gradient_is_asked_for_has_one_stand_in(is_operand_first: bool):
    model = nn.Linear(4, 1)
    x = torch.randn(3, 4, requires_grad=True)

    with Watched() as watched:
        first = x * 1 if is_operand_first else x
        slope = torch.autograd.grad((model(x) * first.sum()).sum(), x, create_graph=True)[0]
        watched.close(slope.sum())

        kept = {e.tensor for event in watched.tape.events for e in event.externals if e.tensor.shape == x.shape}
        assert len(kept) == 1


def test_what_a_stage_of_a_pipeline_receives_counts_as_kept():
    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.input_tensor = nn.Linear(4, 1), None

        def forward(self):
            return self.fc(self.input_tensor)

    stage = Stage()
    with Watched(keep_bytes=1000) as watched:
        for _ in range(3):
            stage.input_tensor = torch.randn(25, 4, requires_grad=True)  # 400 bytes
            stage()

        assert "larger than keep_mb" in watched.tape.broken
        assert watched.tape.events == []


def test_the_gradients_that_backward_starts_from_count_as_kept():
    model = nn.Linear(4, 100)
    with Watched(keep_bytes=1000) as watched:
        for number in range(3):
            watched.tape.close_microbatch(number, 0, [model(torch.ones(1, 4))], [torch.ones(1, 100)])

        assert "larger than keep_mb" in watched.tape.broken
        assert [m.seeds for m in watched.tape.microbatches] == [[None]] * 3
        assert all(m.why_not for m in watched.tape.microbatches)


def test_micro_batches_that_no_update_follows_do_not_grow_for_ever(monkeypatch):
    from hypocenter.tap import tape as taping

    monkeypatch.setattr(taping, "MAX_MICROBATCHES", 8)
    model = nn.Linear(4, 1)
    with Watched() as watched:
        for number in range(20):
            watched.tape.close_microbatch(number, 0, [model(torch.ones(1, 4)).sum()], [None])

        assert [m.number for m in watched.tape.microbatches] == list(range(12, 20))
        assert "without an update" in watched.tape.broken
