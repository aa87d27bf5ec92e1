"""Each relation finds what breaks it, and names the module; what holds is told as well; nothing is left changed."""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn import functional

from hypocenter.relations.relation import RELATIONS
from hypocenter.testing import RelationBroken, check_relations

N, LENGTH, VOCAB, WIDTH = 4, 8, 20, 12


class Attention(nn.Module):
    def __init__(self, sees=lambda length: torch.ones(length, length, dtype=torch.bool).tril()):
        super().__init__()
        self.qkv, self.out, self.sees = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), sees

    def forward(self, x, padded=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.mT).masked_fill(~self.sees(x.shape[1]), -1e9)
        if padded is not None:
            scores = scores.masked_fill(padded.unsqueeze(1), -1e9)
        return x + self.out(scores.softmax(-1) @ v)


class Language(nn.Module):
    """Two layers; the second may be another one."""

    def __init__(self, second=None):
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.layers = nn.ModuleList([Attention(), second or Attention()])
        self.dropout = nn.Dropout(0.2)

    def forward(self, ids):
        x = self.tokens(ids)
        for layer in self.layers:
            x = self.dropout(layer(x))
        return self.head(x)


class Classifier(nn.Module):
    """Of padded texts."""

    def __init__(self, *, hands_on=True, pools_all=False):
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, 3)
        self.layer = Attention(lambda length: torch.ones(length, length, dtype=torch.bool))
        self.hands_on, self.pools_all = hands_on, pools_all

    def forward(self, ids, padding_mask):
        x = self.layer(self.tokens(ids), padding_mask if self.hands_on else None)
        real = torch.ones_like(padding_mask) if self.pools_all else ~padding_mask
        return self.head((x * real.unsqueeze(-1)).sum(1) / real.sum(1, keepdim=True))


def text():
    torch.manual_seed(1)
    whole = torch.randint(0, VOCAB, (N, LENGTH + 1))
    return whole[:, :-1].contiguous(), whole[:, 1:].contiguous()


def padded():
    torch.manual_seed(1)
    padded = torch.arange(LENGTH) >= torch.tensor([[8], [6], [5], [3]])
    return torch.randint(1, VOCAB, (N, LENGTH)).masked_fill(padded, 0), padded


def of_tokens(logits, labels):
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def test_all_hold_and_nothing_is_changed():
    (ids, labels), model = text(), Language().train()
    before, rng = copy.deepcopy(model.state_dict()), torch.get_rng_state()

    looked = check_relations(model, (ids,), of_tokens, labels=labels)

    assert {"samples", "future"} <= set(looked.held)
    assert looked.n_forwards <= 12
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert torch.equal(rng, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())
    assert model.training


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x - x.mean(0),
        lambda x: (x - x.mean(0)) / (x.std(0) + 1e-3),
        lambda x: x * x.softmax(0),
        lambda x: x.transpose(0, 1).reshape(x.shape),
        lambda x: x + 0.1 * x.roll(1, 0),
        lambda x: x + 0.1 * x.cumsum(0),
    ],
)
def test_samples_that_mix_are_found_in_their_module(change):
    class Mixing(Attention):
        def forward(self, x, padded=None):
            return change(super().forward(x))

    ids, labels = text()

    with pytest.raises(RelationBroken, match="samples") as raised:
        check_relations(Language(Mixing()), (ids,), of_tokens, labels=labels, only=("samples",))

    assert raised.value.looked.broken[0].module == "layers.1"
    assert raised.value.looked.broken[0].kind == "Mixing"


def test_samples_that_mix_are_found_where_one_number_a_sample_comes_out():
    class Regression(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(5, 8), nn.Linear(8, 1)

        def forward(self, x):
            h = self.first(x).relu()
            return self.head(h - h.mean(0)).squeeze(-1)

    with pytest.raises(RelationBroken, match="samples"):
        check_relations(Regression(), torch.randn(12, 5), functional.mse_loss, labels=torch.randn(12))


@pytest.mark.parametrize(
    "sees",
    [
        lambda length: torch.ones(length, length, dtype=torch.bool),
        lambda length: torch.ones(length, length, dtype=torch.bool).tril(1),
        lambda length: torch.ones(length, length, dtype=torch.bool).triu(),
    ],
)
def test_a_wrong_causal_mask_is_found_in_its_layer(sees):
    ids, labels = text()

    with pytest.raises(RelationBroken, match="future") as raised:
        check_relations(Language(Attention(sees)), (ids,), of_tokens, labels=labels)

    assert [(each.code, each.module) for each in raised.value.looked.broken] == [("HC242", "layers.1")]


def test_a_mean_over_places_is_seen_although_it_does_not_know_their_order():
    class Mean(nn.Module):
        def forward(self, x):
            return x + x.mean(1, keepdim=True)

    ids, labels = text()

    with pytest.raises(RelationBroken, match=r"future.*layers\.1"):
        check_relations(Language(Mean()), (ids,), of_tokens, labels=labels)


def test_places_that_are_counted_along_the_batch():
    class Counting(nn.Module):
        def forward(self, x):
            return x + torch.arange(len(x))[:, None, None] * torch.linspace(-1, 1, WIDTH)

    ids, labels = text()

    with pytest.raises(RelationBroken, match=r"order.*layers\.1"):
        check_relations(Language(Counting()), (ids,), of_tokens, labels=labels)


def test_heads_that_are_split_without_the_transpose():
    class Reshaped(Attention):
        def forward(self, x):
            n, length, _ = x.shape
            q, k, v = (each.reshape(n, 2, length, WIDTH // 2) for each in self.qkv(x).chunk(3, -1))
            scores = (q @ k.mT).masked_fill(~self.sees(length), -1e9)
            return x + self.out((scores.softmax(-1) @ v).reshape(x.shape))

    ids, labels = text()

    with pytest.raises(RelationBroken, match=r"beginning.*layers\.1"):
        check_relations(Language(Reshaped()), (ids,), of_tokens, labels=labels)


def test_labels_that_are_not_shifted():
    ids = (torch.randint(0, VOCAB, (N, 1)) + torch.arange(LENGTH)) % VOCAB  # each tells of the next

    with pytest.raises(RelationBroken, match=r"label.*tokens"):
        check_relations(Language(), (ids,), of_tokens, labels=ids)


def test_labels_that_are_not_shifted_where_no_token_tells_of_the_next():
    ids, _ = text()

    (noted,) = check_relations(Language(), (ids,), of_tokens, labels=ids).broken

    assert (noted.code, noted.module) == ("HC244", "tokens")
    assert "give back" in noted.exception  # a note: it may be meant


def test_labels_that_are_not_shifted_where_there_is_a_source():
    class Decoder(Language):
        def forward(self, source, ids):
            x = self.tokens(ids) + self.tokens(source).mean(1, keepdim=True)
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    ids, source = text()

    with pytest.raises(RelationBroken, match=r"label.*tokens"):
        check_relations(Decoder(), (source, ids), of_tokens, labels=ids)


def test_a_model_may_shift_inside():
    class Shifting(Language):
        def forward(self, ids):
            return super().forward(functional.pad(ids[:, :-1], (1, 0)))

    ids = (torch.randint(0, VOCAB, (N, 1)) + torch.arange(LENGTH)) % VOCAB

    assert "label" in check_relations(Shifting(), (ids,), of_tokens, labels=ids).held


def test_a_head_may_be_called_out():
    ids, _ = text()
    model = nn.Sequential(OrderedDict(tokens=nn.Embedding(VOCAB, WIDTH), out=nn.Linear(WIDTH, VOCAB)))

    (noted,) = check_relations(model, (ids,), of_tokens, labels=ids).broken

    assert (noted.code, noted.module) == ("HC244", "tokens")


def test_a_model_that_gives_its_loss_alone():
    class WithLoss(Language):
        def forward(self, ids, labels):
            return of_tokens(super().forward(ids), labels)

    sees_all = Attention(lambda length: torch.ones(length, length, dtype=torch.bool))
    ids, labels = text()

    with pytest.raises(RelationBroken, match="future") as raised:
        check_relations(WithLoss(sees_all), (ids, labels), lambda loss: loss, only=("future",))

    assert raised.value.looked.broken[0].module == "layers.1"


def test_a_column_that_is_the_label():
    torch.manual_seed(0)
    model, labels = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)), torch.arange(12) % 3
    x = torch.cat([torch.randn(12, 4), labels.float().unsqueeze(1)], 1)

    with pytest.raises(RelationBroken, match="label"):
        check_relations(model, x, functional.cross_entropy, labels=labels)

    assert "label" in check_relations(model, torch.randn(12, 5), functional.cross_entropy, labels=labels).not_asked


def test_padding_holds_with_its_mask():
    ids, mask = padded()

    looked = check_relations(Classifier(), (ids, mask), functional.cross_entropy, labels=torch.tensor([0, 1, 2, 1]))

    assert "padding" in looked.held


@pytest.mark.parametrize(("wrong", "module"), [({"hands_on": False}, "layer"), ({"pools_all": True}, "")])
def test_padding_that_matters(wrong, module):
    ids, mask = padded()

    with pytest.raises(RelationBroken, match="padding") as raised:
        check_relations(Classifier(**wrong), (ids, mask), functional.cross_entropy, labels=torch.tensor([0, 1, 2, 1]))

    assert [(each.code, each.module) for each in raised.value.looked.broken] == [("HC243", module)]


class Unmasked(nn.Module):
    """Of padded texts, whose padding nobody has told; `finds`: it tells them from the token itself."""

    def __init__(self, *, finds=False, is_recurrent=False, says=True):
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCAB, WIDTH, padding_idx=0 if says else None), nn.Linear(WIDTH, 3)
        self.layer = nn.GRU(WIDTH, WIDTH, batch_first=True) if is_recurrent else Attention(
            lambda length: torch.ones(length, length, dtype=torch.bool)
        )  # fmt: skip
        self.finds = finds

    def of(self, ids, padding):
        x = self.tokens(ids)
        if isinstance(self.layer, nn.GRU):
            return self.head(self.layer(x)[0][:, -1])
        real = ~padding
        x = self.layer(x, padding)
        return self.head((x * real.unsqueeze(-1)).sum(1) / real.sum(1, keepdim=True))

    def forward(self, ids, mask=None):
        return self.of(ids, (ids == 0) if self.finds else torch.zeros_like(ids, dtype=torch.bool))


class WithoutMask(Unmasked):
    def forward(self, ids):
        return super().forward(ids)


def of_classes(model, ids):
    return check_relations(model, ids, functional.cross_entropy, labels=torch.tensor([0, 1, 2, 1]))


def test_padding_that_nobody_masks():
    with pytest.raises(RelationBroken, match="made longer by 2") as raised:
        of_classes(Unmasked(), padded()[0])
    assert [each.code for each in raised.value.looked.broken] == ["HC243"]

    with pytest.raises(RelationBroken, match="made longer by 2"):
        of_classes(Unmasked(), padded()[0].flip(1))  # on the left


def test_padding_that_a_model_tells_from_the_tokens():
    assert "unmasked" in of_classes(Unmasked(finds=True), padded()[0]).held


def test_padding_of_a_model_that_takes_no_mask_is_a_note():
    looked = of_classes(WithoutMask(is_recurrent=True), padded()[0])

    assert [each.exception for each in looked.broken] == ["the model takes no mask"]


@pytest.mark.parametrize("ids", ["nobody says so", "of one length", "also within", "none"])
def test_what_is_no_padding_is_left_alone(ids):
    tokens, _ = padded()
    tokens = {
        "nobody says so": tokens,
        "of one length": torch.cat([tokens[:, :3], torch.zeros_like(tokens[:, :2])], dim=1),
        "also within": tokens.index_fill(1, torch.tensor([1]), 0),
        "none": tokens + 1,
    }[ids] % VOCAB

    looked = of_classes(Unmasked(says=ids != "nobody says so"), tokens)

    assert looked.not_asked["unmasked"] == "no tokens are known to be padded without a mask"


def test_a_window_over_the_edge_of_padding_is_named_as_what_it_is():
    class Window(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.conv = nn.Embedding(VOCAB, WIDTH), nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
            self.head = nn.Linear(WIDTH, VOCAB)

        def forward(self, ids, padding_mask):
            return self.head(self.conv(self.tokens(ids).mT).mT)

    ids, mask = padded()
    labels = torch.randint(0, VOCAB, (N, LENGTH)).masked_fill(mask, -100)

    looked = check_relations(Window(), (ids, mask), of_tokens, labels=labels)

    assert [each.exception for each in looked.broken] == ["Conv"]


def test_batch_norm_is_held_and_named():
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.4), nn.Linear(8, 3))
    before = copy.deepcopy(model.state_dict())

    looked = check_relations(model, torch.randn(12, 5), functional.cross_entropy, labels=torch.arange(12) % 3)

    assert "samples" in looked.held
    assert any("BatchNorm" in note for note in looked.notes)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_every_relation_has_a_whole_page():
    assert {name: each.page.missing for name, each in RELATIONS.entries().items() if each.page.missing} == {}


class Reordered(nn.Module):
    """Gives its samples in another order, as one that sorts them by length may do."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(5, 8), nn.Linear(8, 3)
        self.register_buffer("order", torch.randperm(12, generator=torch.Generator().manual_seed(1)))

    def forward(self, x):
        return self.head(self.first(x).relu()[self.order])


def test_samples_that_change_places_do_not_mix():
    model, x, labels = Reordered(), torch.randn(12, 5), torch.randint(0, 3, (12,))

    looked = check_relations(model, x, lambda out, y: functional.cross_entropy(out, y[model.order]), labels=labels)

    assert not looked.broken
    assert "samples change places inside the model" in looked.notes
