"""Batches of another size, modes, and inputs that nothing reads: what is found, and what is left alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from bench.relations.families import FAMILIES, batch_of
from hypocenter.testing import RelationBroken, check_relations

N, WIDTH = 6, 5


class Net(nn.Module):
    """Two layers with something in between."""

    def __init__(self, between=None):
        super().__init__()
        self.first, self.between, self.head = nn.Linear(WIDTH, 8), between or nn.Identity(), nn.Linear(8, 3)

    def forward(self, x, extra=None):
        return self.head(self.between(self.first(x).relu()))


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x, self.training)


def asked(between=None, only=(), reduction="mean", **more):
    torch.manual_seed(0)
    model, x, y = Net(between), torch.randn(N, WIDTH), torch.tensor([0, 1, 2, 1, 1, 0])
    batch = {"x": x, **more}
    return check_relations(
        model, batch, lambda out, y: functional.cross_entropy(out, y, reduction=reduction), labels=y, only=only
    )


def divided(x, _):
    return x / len(x)


def test_a_division_by_the_size_of_the_batch():
    with pytest.raises(RelationBroken, match="split") as raised:
        asked(Of(divided))

    assert [(each.relation, each.code, each.module) for each in raised.value.looked.broken] == [
        ("split", "HC241", "between")
    ]
    assert "samples" in raised.value.looked.held


def test_a_batch_twice_is_asked_on_request():
    assert "repeat" not in (*asked().held, *asked().not_asked)
    assert "repeat" in asked(only=("samples", "repeat")).held
    with pytest.raises(RelationBroken, match="repeat"):
        asked(Of(divided), only=("samples", "repeat"))


def test_where_samples_mix_the_size_is_not_asked():
    with pytest.raises(RelationBroken) as raised:
        asked(Of(lambda x, _: x - x.mean(0)))

    assert [each.relation for each in raised.value.looked.broken] == ["samples"]


@pytest.mark.parametrize("between", [None, nn.Dropout(0.4), nn.BatchNorm1d(8)])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_an_ordinary_model_leaves_no_note(between, reduction):
    looked = asked(between, reduction=reduction)

    assert {"split", "modes", "inputs"} <= set(looked.held)
    assert [note for note in looked.notes if "BatchNorm normalised" not in note] == []
    assert looked.n_forwards <= 12


def test_what_training_does_beside_dropout_is_a_note_with_its_module():
    (note,) = asked(Of(lambda x, training: 2 * x if training else x)).notes

    assert "training computes something else than evaluation" in note
    assert "first in between (Of)" in note


def test_an_evaluation_that_draws_is_a_note_and_no_accusation():
    looked = asked(Of(lambda x, _: x + torch.randn_like(x)))

    assert len(looked.notes) == 1
    assert "evaluation draws random numbers" in looked.notes[0]
    assert "draws random numbers" in looked.not_asked["split"]


def test_an_input_that_nothing_reads():
    (note,) = asked(extra=torch.arange(N)).notes

    assert "given extra, and no operation reads it" in note


def test_an_input_that_is_read_on_the_host_is_read():
    class Told(Net):
        def forward(self, x, lengths):
            return super().forward(x) * (torch.arange(8)[:3] < max(lengths.tolist()))

    looked = check_relations(
        Told(), (torch.randn(N, WIDTH), torch.arange(N) % 4), lambda out: out.square().mean(), only=("inputs",)
    )

    assert looked.notes == []
    assert looked.held == ["inputs"]


def test_a_contrastive_loss_is_no_mean_of_halves():
    def loss(out):
        out = functional.normalize(out)
        return functional.cross_entropy(5 * out @ out.t(), torch.arange(len(out)))

    looked = check_relations(Net(), torch.randn(N, WIDTH), loss)

    assert [note.partition(" (")[0] for note in looked.notes] == ["the loss of the batch"]


@pytest.mark.parametrize("name", ["mixtral", "swin", "switch", "gpt2", "t5"])
def test_models_of_a_library_hold_in_any_size(name):
    recipe = FAMILIES[name]

    looked = check_relations(recipe.make(recipe.attention[0]).train(), batch_of(recipe))

    assert "split" in looked.held
    assert not any("no mean of" in note for note in looked.notes)
