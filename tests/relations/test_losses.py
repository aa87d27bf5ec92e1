"""What a loss function is made for is held against what it is given; each output meets its own label."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import (
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from hypocenter.testing import RelationBroken, check_relations

N, WIDTH, CLASSES = 12, 6, 5


class Net(nn.Module):
    def __init__(self, n_out=CLASSES, last=None):
        super().__init__()
        self.first, self.head, self.last = nn.Linear(WIDTH, 8), nn.Linear(8, n_out), last or nn.Identity()

    def forward(self, x):
        return self.last(self.head(self.first(x).relu()))


def focal(logits, y):
    logs = functional.log_softmax(logits, 1)
    return functional.nll_loss((1 - logs.exp()).square() * logs, y)


def contrastive(z, other):
    return functional.cross_entropy(functional.normalize(z) @ functional.normalize(other).T / 0.1, torch.arange(len(z)))


def moments(z, other):
    """Two sets, whatever their order."""
    return (z[:, None, :] - other[None, :, :]).square().sum(-1).sqrt().mean()


def soft(logits, y, change=lambda p: p):
    return functional.kl_div(functional.log_softmax(logits, 1), change(one_hot(y) * 0.8 + 0.04), reduction="batchmean")


def ctc(logits, labels, lengths, blank=0):
    logs = functional.log_softmax(logits, 1)[:, None]
    return functional.ctc_loss(logs, torch.tensor(labels), torch.tensor([N]), torch.tensor(lengths), blank=blank)


WRONG = {
    "probabilities for scores": (lambda p, y: functional.cross_entropy(p.softmax(1), y), "cross_entropy"),
    "probabilities for logarithms": (lambda p, y: functional.nll_loss(p.softmax(1), y), "nll_loss"),
    "scores for logarithms": (lambda p, y: functional.nll_loss(p, y), "nll_loss"),
    "normalised over samples": (lambda p, y: functional.nll_loss(functional.log_softmax(p, 0), y), "over dimension 0"),
    "probabilities to kl_div": (lambda p, y: functional.kl_div(p.softmax(1), one_hot(y), reduction="sum"), "kl_div"),
    "logarithms as a target": (lambda p, y: soft(p, y, torch.log), "log_target"),
    "a label that is the blank": (lambda p, y: ctc(p, [[1, 0, 2]], [3]), "and for the blank"),
    "two sigmoids": (
        lambda p, y: functional.binary_cross_entropy_with_logits(p.sigmoid(), one_hot(y)), "binary_cross_entropy",
    ),
}  # fmt: skip
RIGHT = {
    "scores": functional.cross_entropy,
    "logarithms": lambda p, y: functional.nll_loss(functional.log_softmax(p, 1), y),
    "logarithms of logarithms": lambda p, y: functional.cross_entropy(functional.log_softmax(p, 1), y),
    "focal": focal,
    "a soft target": soft,
    "padded with the blank": lambda p, y: ctc(p, [[1, 2, 0]], [2]),
    "another blank": lambda p, y: ctc(p, [[1, 0, 2]], [3], blank=4),
    "one sigmoid": lambda p, y: functional.binary_cross_entropy_with_logits(p, one_hot(y)),
    "numbers": lambda p, y: functional.mse_loss(p, one_hot(y)),
    "advantages": lambda p, y: functional.nll_loss(functional.log_softmax(p, 1) * torch.randn(N, 1), y),
}


def one_hot(y):
    return functional.one_hot(y, CLASSES).float()


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def batch():
    return torch.randn(N, WIDTH), torch.randint(0, CLASSES, (N,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", WRONG)
def test_what_a_loss_is_not_made_for(name, dtype):
    loss, words = WRONG[name]
    x, y = batch()

    with pytest.raises(RelationBroken, match=words) as caught:
        check_relations(Net().to(dtype), x.to(dtype), loss=lambda p, labels: loss(p.float(), labels), labels=y)

    (found,) = caught.value.looked.losses
    assert found.code == "HC251"


@pytest.mark.parametrize("name", RIGHT)
def test_what_it_is_made_for(name):
    x, y = batch()

    assert not check_relations(Net(), x, loss=RIGHT[name], labels=y).losses


def test_a_softmax_at_the_end_of_the_model_is_seen_too():
    x, y = batch()

    with pytest.raises(RelationBroken, match=r"cannot fall below 0\.905"):
        check_relations(Net(last=nn.Softmax(1)), x, loss=functional.cross_entropy, labels=y)


def test_every_output_with_every_label():
    x, y = torch.randn(N, WIDTH), torch.randn(N)

    with pytest.raises(RelationBroken, match=r"\[12, 1\] and \[12\]") as caught:
        check_relations(Net(1), x, loss=lambda p, labels: (p - labels).square().mean(), labels=y)

    (found,) = caught.value.looked.losses
    assert found.code == "HC252"
    assert found.source is not None


class OwnLoss(nn.Module):
    def forward(self, p, labels):
        return (p - labels).abs().mean()


class WithLoss(Net):
    """Gives its loss itself."""

    def forward(self, x, labels):
        return {"loss": (super().forward(x) - labels).square().mean()}


@pytest.mark.parametrize(
    "loss", [nn.MSELoss(), nn.L1Loss(), nn.HuberLoss(), OwnLoss()], ids=lambda loss: type(loss).__name__
)
@pytest.mark.parametrize("is_output_longer", [True, False])
def test_every_output_with_every_label_in_a_criterion(loss, is_output_longer):
    x, y = torch.randn(N, WIDTH), torch.randn(N)
    model = Net(1, nn.Identity() if is_output_longer else nn.Flatten(0))

    with pytest.raises(RelationBroken, match="which label belongs to which sample"):
        check_relations(model, x, loss=loss, labels=y if is_output_longer else y.unsqueeze(1))
    check_relations(model, x, loss=loss, labels=y.unsqueeze(1) if is_output_longer else y)


def test_every_output_with_every_label_in_a_model():
    x, y = torch.randn(N, WIDTH), torch.randn(N)

    with pytest.raises(RelationBroken, match="which label belongs to which sample"):
        check_relations(WithLoss(1), {"x": x, "labels": y})
    check_relations(WithLoss(1), {"x": x, "labels": y.unsqueeze(1)})


@pytest.mark.parametrize(
    "loss",
    [
        lambda p, labels: (p.squeeze(1) - labels).square().mean(),
        lambda p, labels: (p - labels[:, None]).square().mean(),
        lambda p, labels: ((p - labels) * torch.eye(N)).square().mean(),  # crosswise, and its own are taken
    ],
)
def test_each_output_with_its_own_label(loss):
    x, y = torch.randn(N, WIDTH), torch.randn(N)

    assert not check_relations(Net(1), x, loss=loss, labels=y).losses


@pytest.mark.parametrize("loss", [contrastive, moments])
def test_a_loss_of_a_whole_batch_is_no_mistake(loss):
    x, other = torch.randn(N, WIDTH), torch.randn(N, CLASSES)

    looked = check_relations(Net(), x, loss=loss, labels=other)

    assert not looked.losses


def language(**given):
    config = LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2
    )
    return check_relations(LlamaForCausalLM(config), given)


def test_labels_that_are_shifted_twice():
    text = torch.randint(0, 50, (4, 17))

    with pytest.raises(RelationBroken, match="2 places later"):
        language(input_ids=text[:, :-1], labels=text[:, 1:])
    language(input_ids=text, labels=text)


def test_distances_of_all_pairs_by_the_squares_of_their_rows():
    def distances(z, other):
        return (z.square().sum(1, keepdim=True) + other.square().sum(1) - 2 * z @ other.T).mean()

    check_relations(Net(), torch.randn(N, WIDTH), loss=distances, labels=torch.randn(N, CLASSES))


@pytest.mark.parametrize(("silent", "is_told"), [((1, 4), True), ((1,), False), ((), False)])
def test_texts_without_a_token_that_is_asked_for(silent, is_told):
    text = torch.randint(2, 50, (8, 17))
    labels = text.clone()
    labels[:, :9] = -100
    labels[list(silent)] = -100
    if not is_told:
        language(input_ids=text, labels=labels)
        return
    with pytest.raises(RelationBroken, match="no token that the loss asks for: 2 of 8"):
        language(input_ids=text, labels=labels)


def test_rows_of_padding_alone_fill_up_a_batch():
    text = torch.randint(2, 50, (8, 17))
    text[5:] = 0
    labels = text.where(text > 0, -100)
    language(input_ids=text, labels=labels)


def test_a_model_that_is_to_say_the_token_after_the_next():
    class Ahead(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.rnn, self.head = nn.Embedding(50, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 50)

        def forward(self, ids):
            return self.head(self.rnn(self.embed(ids))[0])

    text = torch.randint(0, 50, (4, 17))

    check_relations(
        Ahead(), text[:, :-2], lambda out, y: functional.cross_entropy(out.flatten(0, 1), y.flatten()),
        labels=text[:, 2:],
    )  # fmt: skip


MASK = 3


def masked_text():
    """Tokens, and where they are masked."""
    chosen = torch.zeros(8, 16, dtype=torch.bool)
    chosen[:, 2::5] = True
    return torch.randint(4, 50, (8, 16)), chosen


def fill_in(ids, labels):
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    model = BertForMaskedLM(BertConfig(vocab_size=50, hidden_size=16, **sizes))
    return check_relations(model, {"input_ids": ids, "labels": labels})


def test_labels_that_are_the_mask():
    text, chosen = masked_text()
    masked = text.masked_fill(chosen, MASK)

    with pytest.raises(RelationBroken, match="asks for the token that marks where it asks: 3"):
        fill_in(masked, masked.masked_fill(~chosen, -100))


def test_labels_that_are_what_was_there():
    text, chosen = masked_text()
    masked, kept = text.masked_fill(chosen, MASK), chosen & (torch.arange(16) > 8)

    assert not fill_in(masked, text.masked_fill(~chosen, -100)).losses
    assert not fill_in(text.masked_fill(kept, MASK), text.masked_fill(~chosen, -100)).losses  # a part is left as it is
    assert not fill_in(masked, text).losses  # what gives back all of it
    assert not fill_in(text, text.masked_fill(~chosen, -100)).losses  # or a part
    text[:, 0] = masked[:, 0] = MASK
    assert not fill_in(masked, masked.masked_fill(~chosen, -100)).losses  # a separator that is asked for


def masked_at_random(seed=0):
    """Tokens as a collator masks them: of those that are asked for four of five, others are other ones or stay."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(4, 50, (8, 16), generator=generator)
    chosen = torch.rand(text.shape, generator=generator) < 0.15
    kind = torch.rand(text.shape, generator=generator)
    ids = text.masked_fill(chosen & (kind < 0.8), MASK)
    ids = torch.where(chosen & (kind > 0.9), torch.randint(4, 50, text.shape, generator=generator), ids)
    return ids, text, chosen


def test_masked_tokens_asked_of_a_model_that_says_the_next():
    ids, text, chosen = masked_at_random()

    with pytest.raises(RelationBroken, match="masked tokens one place before their mask"):
        language(input_ids=ids, labels=text.masked_fill(~chosen, -100))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_masked_tokens_that_are_asked_for_where_they_are(seed):
    ids, text, chosen = masked_at_random(seed)

    assert not fill_in(ids, text.masked_fill(~chosen, -100)).losses
    assert not language(input_ids=ids, labels=text).losses  # noise in what is read
    assert not language(input_ids=ids, labels=ids).losses  # a token that is often there
    assert not language(input_ids=text, labels=text.masked_fill(~chosen, -100)).losses  # some are asked for


class Mixing(nn.Module):
    """Places attend to places."""

    def __init__(self, average):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, 8) for _ in range(3))
        self.head = nn.Linear(8, CLASSES)
        self.dropout, self.average = nn.Dropout(0.1), average

    def forward(self, x):
        scores = self.q(x) @ self.k(x).mT
        return self.head(self.average(self, scores, self.v(x)).mean(1))


AVERAGES = {
    "over keys": (lambda m, s, v: m.dropout(s.softmax(-1)) @ v, False),
    "over queries": (lambda m, s, v: m.dropout(s.softmax(-2)) @ v, True),
    "over queries, cast": (lambda m, s, v: functional.softmax(s.float(), dim=1).to(v.dtype) @ v, True),
    "turned twice": (lambda m, s, v: s.softmax(-2).mT @ v, False),
    "turned": (lambda m, s, v: s.softmax(-1).mT @ v, True),
    "over queries, divided": (lambda m, s, v: (s.softmax(-2) / s.softmax(-2).sum(-1, keepdim=True)) @ v, False),
    "shared out among clusters": (lambda m, s, v: s[:, :, :3].softmax(-1).mT @ v, False),
}


@pytest.mark.parametrize("name", AVERAGES)
def test_weights_sum_to_one_over_what_is_summed(name):
    average, is_wrong = AVERAGES[name]
    x, y = torch.randn(N, 7, WIDTH), torch.randint(0, CLASSES, (N,))

    try:
        found = check_relations(Mixing(average), x, loss=functional.cross_entropy, labels=y).losses
    except RelationBroken as broken:
        found = broken.looked.losses

    assert [each.code for each in found] == ["HC256"] * is_wrong


class Pooling(nn.Module):
    """Places are shared out among as many clusters: DiffPool, whose last cluster layers have few nodes."""

    def __init__(self, n, scores):
        super().__init__()
        self.before, self.to_clusters, self.head = nn.Linear(WIDTH, 8), nn.Linear(8, n), nn.Linear(8, CLASSES)
        self.places, self.scores = nn.Parameter(torch.randn(n, 8)), scores

    def forward(self, x):
        x = self.before(x).relu()
        return self.head((self.scores(self, x).softmax(-1).mT @ x).mean(1))


SHARES = {
    "by a layer": lambda m, x: m.to_clusters(x),
    "over neighbours": lambda m, x: torch.rand(7, 7) @ m.to_clusters(x) / 2,
    "by likeness to what is learned": lambda m, x: x @ m.places.mT,
    "by likeness to each other's": lambda m, x: (m.places @ x.mT).mT,
}


@pytest.mark.parametrize("name", SHARES)
def test_as_many_clusters_as_places_are_no_places(name):
    x, y = torch.randn(N, 7, WIDTH), torch.randint(0, CLASSES, (N,))

    assert not check_relations(Pooling(7, SHARES[name]), x, loss=functional.cross_entropy, labels=y).losses


def padded(counts=True, on_the_left=False, lengths=(9, 5, 7)):
    """Tokens, mask and labels, of which those of padding count or not."""
    ids, place = torch.randint(3, 30, (len(lengths), 9)), torch.arange(9)
    n = torch.tensor(lengths)[:, None]
    mask = (place >= 9 - n if on_the_left else place < n).long()
    ids = ids * mask
    return {"input_ids": ids, "attention_mask": mask, "labels": ids if counts else ids.masked_fill(mask == 0, -100)}


def ended(counts=True, lengths=(5, 3, 4, 6, 8)):
    """Tokens that end by 2 and are padded by 0, without a mask, and labels, of which those of padding count or not."""
    place, n = torch.arange(9), torch.tensor(lengths)[:, None]
    ids = torch.randint(3, 30, (len(lengths), 9)).masked_fill(place == n, 2).masked_fill(place > n, 0)
    return {"input_ids": ids, "labels": ids if counts else ids.masked_fill(place > n, -100)}


def decoder(**ends):
    sizes = {"vocab_size": 30, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    return LlamaForCausalLM(LlamaConfig(**sizes, **ends, num_attention_heads=2, num_key_value_heads=2))


@pytest.mark.parametrize("on_the_left", [False, True])
def test_padding_that_is_asked_for(on_the_left):
    with pytest.raises(RelationBroken, match="the loss asks for padding") as why:
        check_relations(decoder(), padded(on_the_left=on_the_left))
    assert [each.code for each in why.value.looked.losses] == ["HC243"]


@pytest.mark.parametrize("on_the_left", [False, True])
def test_padding_that_is_ignored(on_the_left):
    check_relations(decoder(), padded(counts=False, on_the_left=on_the_left))


def test_the_first_token_behind_a_sample_may_be_asked_for():
    batch = padded(counts=False, lengths=(8, 5, 7))
    for row, length in enumerate((8, 5, 7)):
        batch["labels"][row, length] = 0  # the end of the text
    check_relations(decoder(), batch)


def test_padding_that_is_asked_for_behind_the_end():
    with pytest.raises(RelationBroken, match="the loss asks for padding: 35%") as why:
        check_relations(decoder(pad_token_id=0, eos_token_id=2), ended())
    assert [each.code for each in why.value.looked.losses] == ["HC243"]


@pytest.mark.parametrize(
    ("ends", "given"),
    [
        ((0, 2), {"counts": False}),
        ((0, 2), {"lengths": (7, 7, 7, 8, 8)}),  # one behind the end
        ((0, 2), {"lengths": (5, 5, 5, 5, 5)}),  # as long as another: it may be a form with places for all
        ((2, 2), {}),
        ((0, 1), {}),  # what it generates does not end there
        ((None, 2), {}),
    ],
)
def test_what_is_no_padding_behind_the_end(ends, given):
    check_relations(decoder(pad_token_id=ends[0], eos_token_id=ends[1]), ended(**given))


def test_a_token_that_stands_elsewhere_too_is_no_padding():
    batch = ended()
    batch["input_ids"][:, 1] = 0
    check_relations(decoder(pad_token_id=0, eos_token_id=2), batch)


def with_ends(end, pad, is_asked=False, lengths=(5, 3, 4, 6, 9)):
    """Tokens that end by `end`, and padding behind them."""
    place, n = torch.arange(9), torch.tensor(lengths)[:, None]
    ids = torch.randint(3, 30, (len(lengths), 9)).masked_fill(place >= n - 1, end).masked_fill(place >= n, pad)
    is_left_out = place >= n if is_asked else (ids == pad)
    return {"input_ids": ids, "attention_mask": (place < n).long(), "labels": ids.masked_fill(is_left_out, -100)}


def test_an_end_that_is_taken_for_padding():
    with pytest.raises(AssertionError, match="the token that ends each text is never asked for: 2") as told:
        check_relations(decoder(), with_ends(2, 2))

    assert "ends 4 of 5 texts" in str(told.value)


@pytest.mark.parametrize(
    "batch",
    [
        with_ends(2, 2, is_asked=True),
        with_ends(2, 0),
        with_ends(5, 2),  # a text that goes on
        with_ends(2, 2, lengths=(5, 3, 9, 9, 9)),
    ],
    ids=["asked", "other padding", "cut", "two texts"],
)
def test_an_end_that_is_asked_for_or_is_none(batch):
    assert check_relations(decoder(), batch).losses == []


def test_a_mask_of_an_encoder_says_nothing_of_what_a_decoder_is_asked_for():
    sizes = {"vocab_size": 30, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    model = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0, dropout_rate=0.0))
    batch = padded(lengths=(9, 5, 7, 6))
    check_relations(model, batch | {"labels": torch.randint(3, 30, (4, 9))})
