"""A replay computes the same bits and leaves nothing behind."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hypocenter.replay.engine import Replayer
from hypocenter.tap.roots import RootTap
from hypocenter.tap.tape import Tape
from hypocenter.tap.updates import UpdateTap


class Harness:
    """Tape, hooks and replayer without a session."""

    paused = False

    def __init__(self):
        self.tape = Tape(1 << 30)
        self.failures = []
        self.roots = RootTap(self.tape, on_root=lambda m: None, on_begin=lambda t: None, fail=self.failures.append)
        self.updates = UpdateTap(self)
        self.replayer = Replayer(self.tape, self._replaying)

    def _replaying(self):
        harness = self

        class Paused:
            def __enter__(self):
                harness.paused = harness.roots.paused = True

            def __exit__(self, *error):
                harness.paused = harness.roots.paused = False

        return Paused()

    def before_backward(self, roots, seeds, retain_graph):
        self.roots.suspend()
        self.tape.close_microbatch(len(self.tape.microbatches), 0, roots, seeds)

    def after_backward(self):
        pass

    def __enter__(self):
        self._undo = [self.roots.attach(), self.updates.attach()]
        return self

    def __exit__(self, *error):
        for undo in self._undo:
            undo()


class Block(nn.Module):
    def __init__(self, how="plain"):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.GELU())
        self.head = nn.Linear(8, 1)
        self.how = how
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, scale=None):
        self.calls += 1
        h = self.norm(x) * (1 if scale is None else scale)
        if self.how == "plain":
            h = self.body(h)
        else:
            h = checkpoint(self.body, h, use_reentrant=self.how == "reentrant")
        return self.head(h) * self.calls


def state(model):
    return copy.deepcopy(model.state_dict()), [p.grad for p in model.parameters()], torch.get_rng_state()


@pytest.mark.parametrize("how", ["plain", "reentrant", "non-reentrant"])
def test_a_replay_gives_the_same_loss_and_gradients_and_restores_everything(how):
    torch.manual_seed(0)
    model = Block(how)
    x, y = torch.randn(16, 8), torch.randn(16, 1)

    with Harness() as harness:
        for _ in range(2):
            loss = nn.functional.mse_loss(model(x, scale=torch.tensor(2.0)), y) * 0.5
            loss.backward()
        torch.rand(3)  # the program draws on
        before = state(model)
        first, second = (harness.replayer.run(m, list(model.parameters())) for m in harness.tape.microbatches)

        after = state(model)

    assert torch.equal(second.values[0], loss.detach())
    for p, a, b in zip(model.parameters(), first.grads, second.grads, strict=True):
        assert torch.equal(p.grad, a + b)
    assert all(torch.equal(before[0][k], after[0][k]) for k in before[0])
    assert all(a is b for a, b in zip(before[1], after[1], strict=True))
    assert torch.equal(before[2], after[2])
    assert harness.failures == []


def test_autocast_and_training_flags_are_those_of_the_call():
    torch.manual_seed(0)
    model = Block()
    x = torch.randn(16, 8)

    with Harness() as harness:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().mean()
        loss.backward()
        model.eval()
        replayed = harness.replayer.run(harness.tape.microbatches[0], list(model.parameters()))

        assert torch.equal(replayed.values[0], loss.detach())
        assert not model.training
        assert not any(m.training for m in model.modules())


class MadeAnew(nn.Module):
    """A parameter and a layer of their own for each call."""

    def forward(self, x):
        self.scale, self.layer = nn.Parameter(torch.ones(4)), nn.Linear(4, 1)
        return self.layer(x * self.scale)


def test_what_forward_makes_anew_is_that_of_the_run_afterwards():
    model = MadeAnew()

    with Harness() as harness:
        model(torch.randn(3, 4)).sum().backward()
        before = [model.scale, model.layer, model.layer.weight]
        harness.replayer.run(harness.tape.microbatches[0], [])

    assert all(a is b for a, b in zip(before, [model.scale, model.layer, model.layer.weight], strict=True))
    assert model.scale.grad is not None


def test_the_users_accumulation_hooks_do_not_fire():
    model = nn.Linear(4, 1)
    fired = []

    with Harness() as harness:
        model(torch.randn(3, 4)).sum().backward()
        model.weight.register_post_accumulate_grad_hook(lambda p: fired.append(p))
        harness.replayer.run(harness.tape.microbatches[0], list(model.parameters()))

    assert fired == []


def test_rows_can_be_left_out():
    model = nn.Linear(4, 1)
    x, y = torch.randn(6, 4), torch.randn(6, 1)

    with Harness() as harness:
        nn.functional.mse_loss(model(x), y).backward()
        replayed = harness.replayer.run(
            harness.tape.microbatches[0], list(model.parameters()), rows=(6, torch.tensor([0, 2]))
        )

    expected = nn.functional.mse_loss(model(x[[0, 2]]), y[[0, 2]])
    assert torch.allclose(replayed.values[0], expected.detach())


def test_two_models_and_one_backward_with_a_retained_graph():
    torch.manual_seed(0)
    first, second = nn.Linear(4, 4), nn.Linear(4, 1)
    x = torch.randn(3, 4)

    with Harness() as harness:
        hidden = first(x).relu()
        a, b = second(hidden).sum(), second(hidden * 2).sum()
        a.backward(retain_graph=True)
        b.backward()
        parameters = [*first.parameters(), *second.parameters()]
        grads = [harness.replayer.run(m, parameters).grads for m in harness.tape.microbatches]

    for p, one, two in zip(parameters, *grads, strict=True):
        assert torch.equal(p.grad, one + two)


class Stage(nn.Module):
    """Takes its input as a stage of Megatron-Core does: not as an argument."""

    def __init__(self):
        super().__init__()
        self.input_tensor = None
        self.linear = nn.Linear(4, 2)

    def forward(self):
        return self.linear(self.input_tensor)


def test_each_micro_batch_is_done_again_with_the_input_that_was_put_into_the_module():
    stage, inputs = Stage(), [torch.randn(3, 4, requires_grad=True) for _ in range(2)]
    with Harness() as harness:
        losses = []
        for received in inputs:
            stage.input_tensor = received
            loss = stage().square().mean()
            loss.backward()
            losses.append(loss.detach())
        sent_back = [received.grad.clone() for received in inputs]

        done = [harness.replayer.run(m, list(stage.parameters())) for m in harness.tape.microbatches]

    assert [replayed.values[0].item() for replayed in done] == [loss.item() for loss in losses]
    assert stage.input_tensor is inputs[1]
    assert all(torch.equal(received.grad, grad) for received, grad in zip(inputs, sent_back, strict=True))
    assert harness.failures == []


class Router(nn.Module):
    """Leaves a loss of its own in an attribute, as mixtures of experts do."""

    def __init__(self):
        super().__init__()
        self.part = nn.Linear(8, 2)
        self.balance = None

    def forward(self, x):
        share = self.part(x).softmax(-1)
        self.balance = share.mean(0).square().sum()
        return share


def test_a_loss_that_a_module_leaves_in_an_attribute_is_computed_again():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Router())
    with Harness() as harness:
        out = model(torch.randn(4, 8))
        kept = model[1].balance
        (out.square().sum() + 0.3 * model[1].balance).backward()
        replayed = harness.replayer.run(harness.tape.microbatches[0], list(model.parameters()))

    for parameter, grad in zip(model.parameters(), replayed.grads, strict=True):
        assert torch.equal(parameter.grad, grad)
    assert model[1].balance is kept


def test_a_generator_of_the_programs_own_draws_the_same_again_and_goes_on():
    torch.manual_seed(0)
    model, own = nn.Linear(4, 1), torch.Generator().manual_seed(1)
    with Harness() as harness:
        losses = [model(torch.rand(3, 4, generator=own)).sum() for _ in range(2)]  # as a pipeline, before any backward
        for loss in losses:
            loss.backward()
        now = own.get_state()

        replayed = [harness.replayer.run(m, [model.weight]) for m in harness.tape.microbatches]

    assert [r.values[0] for r in replayed] == losses
    assert torch.equal(own.get_state(), now)


def test_a_replay_walks_through_a_model_once():
    class Walked(Block):
        n_walks = 0

        def modules(self):
            self.n_walks += 1
            return super().modules()

    model = Walked()
    with Harness() as harness:
        model(torch.randn(4, 8)).sum().backward()
        model.n_walks = 0

        harness.replayer.run(harness.tape.microbatches[0], list(model.parameters()))

    assert model.n_walks == 1
