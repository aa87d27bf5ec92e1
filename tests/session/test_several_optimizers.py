"""Several optimizers: whatever the step, the order and the number, the update that wrote the NaN is named."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run


def errors_of(out):
    return [f for f in diagnose(open_run(out)).findings if f.severity == "error"]


def origins(out):
    """(step, op, cause) of each error."""
    return [(f.step, f.op, f.cause) for f in errors_of(out)]


class Disc(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())

    def forward(self, x):
        return self.net(x)


def gan(bad_step, n_steps, *, n_critic=1):
    """A discriminator and a generator; an outlier in the real data of one step makes log(0) in D's loss."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    disc = Disc()
    update_d = torch.optim.Adam(disc.parameters(), 1e-3)
    update_g = torch.optim.Adam(generator.parameters(), 1e-3)
    for step in range(n_steps):
        for _ in range(n_critic):
            real = torch.randn(8, 2) * (1e6 if step == bad_step else 1.0)
            fake = generator(torch.randn(8, 4))
            update_d.zero_grad()
            loss_d = -(torch.log(disc(real)) + torch.log(1 - disc(fake.detach()))).mean()
            loss_d.backward()
            update_d.step()
        update_g.zero_grad()
        loss_g = -torch.log(disc(fake)).mean()
        loss_g.backward()
        update_g.step()


@pytest.mark.slow
@pytest.mark.parametrize("bad_step", range(16))
def test_the_logarithm_is_named_whatever_the_step(tmp_path, bad_step):
    with hypocenter.watch(out=str(tmp_path / "run")):
        gan(bad_step, bad_step + 3)

    assert origins(tmp_path / "run") == [(bad_step, "aten.log.default", "log-of-zero")]


@pytest.mark.slow
@pytest.mark.parametrize("bad_step", range(4))
def test_with_several_updates_of_one_optimizer_in_a_round(tmp_path, bad_step):
    with hypocenter.watch(out=str(tmp_path / "run")):
        gan(bad_step, bad_step + 2, n_critic=3)

    found = errors_of(tmp_path / "run")
    assert [f.cause for f in found] == ["log-of-zero"]
    assert found[0].step == 3 * bad_step  # a step ends when one of the optimizers comes round again


def chain(n_models, order, bad_model, bad_step, n_steps):
    """Models that read each other's outputs, each with an optimizer; one takes the root of a negative number once."""
    torch.manual_seed(0)
    models = [nn.Linear(3, 3) for _ in range(n_models)]
    optimizers = [torch.optim.AdamW(model.parameters(), 1e-2) for model in models]
    for step in range(n_steps):
        x = torch.randn(5, 3)
        for turn in order:
            out = x
            for i, model in enumerate(models):
                out = model(out) if i == turn else model(out).detach() if i < turn else out
            loss = out.pow(2).mean()
            if (step, turn) == (bad_step, bad_model):
                loss = loss + torch.sqrt(-out.abs() - 1.0).mean()
            optimizers[turn].zero_grad()
            loss.backward()
            optimizers[turn].step()


CHAINS = [
    (n, order, bad_model)
    for n in (2, 3)
    for order in itertools.permutations(range(n))
    for bad_model in (0, n - 1)
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("n_models", "order", "bad_model"), CHAINS)
def test_the_root_is_named_whatever_the_order_and_the_number(tmp_path, n_models, order, bad_model):
    for bad_step in (0, 3, 5):
        out = tmp_path / str(bad_step)
        with hypocenter.watch(out=str(out)):
            chain(n_models, order, bad_model, bad_step, bad_step + 2)

        assert origins(out)[:1] == [(bad_step, "aten.sqrt.default", errors_of(out)[0].cause)]
        assert "bad-parameter" not in {f.cause for f in errors_of(out)}


def test_models_are_called_as_their_variables_are(tmp_path):
    with hypocenter.watch(out=str(tmp_path / "run")):
        gan(None, 2)

    rows = open_run(tmp_path / "run").readings()
    names = {row.site.partition(".")[0] for row in rows if row.phase == "grad"}
    assert names == {"disc", "generator", "grad_norm"}


@pytest.mark.slow
@pytest.mark.parametrize("bad_step", [0, 1, 4])
def test_what_was_made_before_another_update_is_replayed_in_the_loss_that_uses_it(tmp_path, bad_step):
    """The fake images are made once, for the discriminator's update and for the generator's after it."""
    torch.manual_seed(0)
    generator, disc = nn.Linear(4, 2), nn.Linear(2, 1)
    update_g, update_d = (torch.optim.Adam(m.parameters(), 1e-3) for m in (generator, disc))
    with hypocenter.watch(out=str(tmp_path / "run")):
        for step in range(bad_step + 2):
            fake = generator(torch.randn(8, 4))
            update_d.zero_grad()
            (disc(torch.randn(8, 2)).mean() - disc(fake.detach()).mean()).backward()
            update_d.step()
            update_g.zero_grad()
            loss = disc(fake).pow(2).mean()
            loss = torch.log(loss * 0) if step == bad_step else loss
            loss.backward()
            update_g.step()

    assert origins(tmp_path / "run") == [(bad_step, "aten.log.default", "log-of-zero")]


def test_optimizers_made_for_each_task_are_not_kept_and_all_join_the_round(tmp_path):
    import transformers.trainer  # noqa: F401 - a Trainer is looked for then, in the frames around each step

    model, made = nn.Linear(3, 1), []
    outer = torch.optim.SGD(model.parameters(), 0.01)
    with hypocenter.watch(out=str(tmp_path / "run")):
        for _ in range(4):
            inner = torch.optim.SGD(model.parameters(), 0.1)
            made.append(weakref.ref(inner))
            for optimizer in (inner, outer):
                model(torch.randn(4, 3)).pow(2).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            del inner, optimizer
            gc.collect()

        assert [ref() for ref in made] == [None] * 4
    assert [record.step for _, record in open_run(tmp_path / "run").step_records()] == [0, 0, 1, 1, 2, 2, 3, 3]


ORDERS = {"as made": (0, 1), "the other way": (1, 0), "in turns": None}


def one_backward(order, bad_step, bad_model, n_steps, *, clears_before=False):
    """Encoder and decoder, an optimizer each, one loss. Once, the gradients of one of them are not a number.

    Args:
        order: of the optimizers; None: another one at each step.
        clears_before: gradients are cleared between the two updates, so that the second one never uses its own.
    """
    torch.manual_seed(0)
    encoder, decoder = nn.Linear(4, 8), nn.Linear(8, 4)
    optimizers = [torch.optim.Adam(each.parameters(), 1e-3) for each in (encoder, decoder)]
    for step in range(n_steps):
        x = torch.randn(16, 4)
        h = encoder(x)
        if (step, 0) == (bad_step, bad_model):
            h = h * torch.sqrt((h - h.detach()).abs())  # 0, and its derivative is not
        out = decoder(h)
        if (step, 1) == (bad_step, bad_model):
            scale = torch.ones_like(decoder.bias).requires_grad_()
            out = decoder(h.detach()) + 0 * torch.sqrt((decoder.bias - decoder.bias.detach()).abs()) * scale
        loss = (out - x).pow(2).mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for i in order or ((0, 1), (1, 0))[step % 2]:
            if optimizers[i].param_groups[0]["params"][0].grad is not None:
                optimizers[i].step()
            if clears_before:
                encoder.zero_grad()
    return [p.detach().clone() for each in (encoder, decoder) for p in each.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("bad_model", [0, 1])
@pytest.mark.parametrize("bad_step", range(7))
def test_two_updates_on_one_backward_are_both_replayed(tmp_path, bad_step, bad_model, order):
    with hypocenter.watch(out=str(tmp_path / "run")):
        one_backward(order, bad_step, bad_model, bad_step + 2)

    found = errors_of(tmp_path / "run")
    assert [(f.step, f.op) for f in found] == [(bad_step, "aten.sqrt.default")]


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_two_healthy_updates_on_one_backward_are_silent_and_the_same_bits(tmp_path, order):
    plain = one_backward(order, None, 0, 7)
    with hypocenter.watch(out=str(tmp_path / "run")):
        watched = one_backward(order, None, 0, 7)

    assert errors_of(tmp_path / "run") == []
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


@pytest.mark.parametrize("bad_step", range(3))
def test_gradients_that_no_optimizer_uses_accuse_nobody(tmp_path, bad_step):
    with hypocenter.watch(out=str(tmp_path / "run")):
        one_backward((1, 0), bad_step, 0, bad_step + 3, clears_before=True)

    assert errors_of(tmp_path / "run") == []


@pytest.mark.parametrize("bad_step", [0, 2])
def test_what_one_loss_leaves_in_the_others_gradients_accuses_nobody(tmp_path, bad_step):
    """The discriminator's loss goes through the generator as well, whose gradients are cleared before its own."""
    torch.manual_seed(0)
    generator, disc = nn.Linear(4, 2), nn.Linear(2, 1)
    update_g, update_d = (torch.optim.Adam(m.parameters(), 1e-3) for m in (generator, disc))
    with hypocenter.watch(out=str(tmp_path / "run")):
        for step in range(bad_step + 3):
            fake = generator(torch.randn(8, 4))
            root = torch.sqrt((fake - fake.detach()).abs()) if step == bad_step else 0.0
            disc(fake + root).pow(2).mean().backward()
            update_d.step()
            update_g.zero_grad()
            disc(generator(torch.randn(8, 4))).mean().backward()
            update_g.step()
            update_d.zero_grad()

    assert errors_of(tmp_path / "run") == []


def test_a_skipped_second_update_leaves_the_first(tmp_path):
    with hypocenter.watch(out=str(tmp_path / "run"), on_finding="skip"):
        parameters = one_backward((1, 0), 3, 0, 6)

    assert all(bool(torch.isfinite(p).all()) for p in parameters)
    assert [r.skipped for _, r in open_run(tmp_path / "run").step_records()].count(True) == 1


@pytest.mark.parametrize("n_phases", [2, 3])
def test_phases_one_after_another_count_on(tmp_path, n_phases):
    def phase(model, n_steps):
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(n_steps):
            optimizer.zero_grad()
            model(torch.randn(4, 2)).sum().backward()
            optimizer.step()

    with hypocenter.watch(out=str(tmp_path / "run")):
        for _ in range(n_phases):
            phase(nn.Linear(2, 2), 3)

    assert [record.step for _, record in open_run(tmp_path / "run").step_records()] == [*range(3 * n_phases)]


@pytest.mark.night
def test_a_session_that_is_over_keeps_neither_model_nor_optimizer(tmp_path):
    def train():
        model = nn.Linear(2, 2)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        with hypocenter.watch(out=str(tmp_path / "run")):
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.randn(4, 2)).sum().backward()
                optimizer.step()
        return weakref.ref(model), weakref.ref(optimizer)

    model, optimizer = train()
    gc.collect()

    assert model() is None
    assert optimizer() is None
