"""Programs in which rows, places or labels meet on purpose, or may do so: nobody is accused of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import rnn

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run
from hypocenter.testing import check_relations

N, LENGTH, WIDTH = 4, 6, 8


def found(tmp_path, model, step):
    """What two steps under `relations` leave."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with hypocenter.watch(model, optimizer, out=str(tmp_path / "run"), relations="0-1", audit="never"):
        for _ in range(2):
            step(model).backward()
            optimizer.step()
            optimizer.zero_grad()
    findings = diagnose(open_run(tmp_path / "run")).findings
    return [f for f in findings if f.code in ("HC241", "HC242", "HC243", "HC244") and f.severity != "note"]


class SequenceFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


def test_places_first_of_a_recurrent_net(tmp_path):
    x, y = torch.randn(LENGTH, N, WIDTH), torch.randint(0, 3, (LENGTH, N))

    assert found(tmp_path, SequenceFirst(), lambda m: functional.cross_entropy(m(x).flatten(0, 1), y.flatten())) == []


def test_a_square_batch_with_places_first(tmp_path):
    x, y = torch.randn(N, N, WIDTH), torch.randint(0, 3, (N, N))

    assert found(tmp_path, SequenceFirst(), lambda m: functional.cross_entropy(m(x).flatten(0, 1), y.flatten())) == []


@pytest.mark.parametrize("is_cell", [False, True])
def test_a_state_that_goes_on_from_batch_to_batch(tmp_path, is_cell):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRUCell(WIDTH, 5) if is_cell else nn.GRU(WIDTH, 5, batch_first=True)
            self.head = nn.Linear(5, 3)

        def forward(self, x, state):
            out = self.rnn(x, state)
            return (self.head(out), out) if is_cell else (self.head(out[0][:, -1]), out[1])

    x, y = torch.randn(N, WIDTH) if is_cell else torch.randn(N, LENGTH, WIDTH), torch.arange(N) % 3
    kept = [torch.randn(N, 5) if is_cell else torch.randn(1, N, 5)]

    def step(model):
        out, state = model(x, kept[-1].detach())
        kept.append(state)
        return functional.cross_entropy(out, y)

    assert found(tmp_path, Net(), step) == []


def test_a_step_of_learning_within_a_step(tmp_path):
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 3))
    (known, asked), y = torch.randn(2, N, WIDTH), torch.arange(N) % 3

    def step(model):
        weights = dict(model.named_parameters())
        slopes = torch.autograd.grad(functional.cross_entropy(model(known), y), list(weights.values()))
        fast = {name: p - 0.5 * g for (name, p), g in zip(weights.items(), slopes, strict=True)}
        return functional.cross_entropy(torch.func.functional_call(model, fast, (asked,)), y)

    assert found(tmp_path, model, step) == []


def test_one_sequence_without_a_batch(tmp_path):
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 16), 1, enable_nested_tensor=False)
    x, y = torch.randn(LENGTH, WIDTH), torch.randint(0, WIDTH, (LENGTH,))

    assert found(tmp_path, model, lambda m: functional.cross_entropy(m(x), y)) == []


def test_a_graph(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

        def forward(self, x, edge_index):
            h = self.lin(x)
            return self.head(h.index_add(0, edge_index[1], h[edge_index[0]]).relu())

    x, y = torch.randn(12, WIDTH), torch.randint(0, 3, (12,))
    edges = torch.randint(0, 12, (2, 30))

    assert found(tmp_path, Net(), lambda m: functional.cross_entropy(m(x, edges), y)) == []


def test_a_graph_whose_edges_stay_outside_of_modules(tmp_path):
    model = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)])
    x, y = torch.randn(12, WIDTH), torch.randint(0, 3, (12,))
    edges = torch.randint(0, 12, (2, 30))

    def summed(h):
        return h.index_add(0, edges[1], h[edges[0]])

    assert found(tmp_path, model, lambda m: functional.cross_entropy(m[1](summed(m[0](summed(x)).relu())), y)) == []


@pytest.mark.parametrize("asks_for_label", [False, True])
def test_the_class_of_what_is_made_is_no_label(tmp_path, asks_for_label):
    """Tokens of a picture, whose class is given under the name of a label; and a classifier that is given it."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.of_class, self.embed = nn.Embedding(5, WIDTH), nn.Embedding(20, WIDTH)
            self.rnn, self.head = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, 20)

        def forward(self, ids, labels):
            before = torch.cat([self.of_class(labels).unsqueeze(1), self.embed(ids[:, :-1])], 1)
            out = self.head(self.rnn(before)[0])
            return out[:, -1] if asks_for_label else out.flatten(0, 1)

    torch.manual_seed(0)
    ids, labels = torch.randint(0, 20, (N, LENGTH)), torch.arange(N).flip(0)
    asked = labels if asks_for_label else ids.flatten()
    told = found(tmp_path, Net(), lambda m: functional.cross_entropy(m(ids, labels=labels), asked))

    assert [each.code for each in told] == ["HC244"] * asks_for_label


def test_places_of_labels_excuse_nothing(tmp_path):
    class Mixes(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, 3)

        def forward(self, x):
            h = self.up(x)
            return self.down((h - h.mean(0)).relu())

    x, y = torch.randn(N, WIDTH), torch.randint(0, 3, (N,))

    (only,) = found(tmp_path, Mixes(), lambda m: -m(x).log_softmax(-1)[torch.arange(N), y].mean())
    assert only.code == "HC241"


def test_vectors_one_by_one(tmp_path):
    model = nn.Linear(4, 2)
    states = torch.randn(5, 4)

    assert found(tmp_path, model, lambda m: torch.stack([m(s).log_softmax(0)[0] for s in states]).sum()) == []


def test_batch_norm_in_training(tmp_path):
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
    x, y = torch.randn(N, WIDTH), torch.randint(0, 3, (N,))

    assert found(tmp_path, model, lambda m: functional.cross_entropy(m(x), y)) == []


class InPlace(nn.Module):
    """Rounds to steps of a range that follows the batch."""

    def __init__(self):
        super().__init__()
        self.register_buffer("top", torch.ones(()))

    def follow(self, x):
        self.top.lerp_(x.detach().abs().max(), 0.1)

    def forward(self, x):
        self.follow(x)
        step = self.top / 127
        return x + ((x / step).round() * step - x).detach()


class Assigned(InPlace):
    def follow(self, x):
        self.top = 0.9 * self.top + 0.1 * x.detach().abs().max()


class Plain(InPlace):
    """Keeps it in an attribute, of which no checkpoint knows."""

    def __init__(self):
        super().__init__()
        del self.top
        self.top = torch.ones(())


class PlainAssigned(Plain, Assigned):
    """Puts another tensor there each time."""


class Number(Plain):
    def follow(self, x):
        self.top = 0.9 * float(self.top) + 0.1 * x.detach().abs().max().item()


def trained_for_quantization():
    from torch.ao.quantization import FusedMovingAvgObsFakeQuantize

    return FusedMovingAvgObsFakeQuantize()


@pytest.mark.parametrize("made", [InPlace, Assigned, Plain, PlainAssigned, Number, trained_for_quantization])
def test_a_range_that_a_layer_keeps(tmp_path, made):
    model = nn.Sequential(nn.Linear(WIDTH, 16), made(), nn.ReLU(), nn.Linear(16, 3))
    x, y = torch.randn(N, WIDTH), torch.randint(0, 3, (N,))

    assert found(tmp_path, model, lambda m: functional.cross_entropy(m(x), y)) == []


def test_statistics_that_are_only_counted_in_a_buffer_excuse_nothing(tmp_path):
    class Mixes(InPlace):
        def forward(self, x):
            self.top += 1
            return x - x.mean(0)

    model = nn.Sequential(nn.Linear(WIDTH, 16), Mixes(), nn.ReLU(), nn.Linear(16, 3))
    x, y = torch.randn(N, WIDTH), torch.randint(0, 3, (N,))

    (only,) = found(tmp_path, model, lambda m: functional.cross_entropy(m(x), y))
    assert (only.code, only.site) == ("HC241", "1")


@pytest.mark.parametrize("is_number", [False, True])
def test_what_is_only_logged_in_an_attribute_excuses_nothing(tmp_path, is_number):
    class Mixes(nn.Module):
        def __init__(self):
            super().__init__()
            self.total = 0.0 if is_number else torch.zeros(())

        def forward(self, x):
            largest = x.detach().abs().max()
            self.total = self.total + (largest.item() if is_number else largest)
            return x - x.mean(0)

    model = nn.Sequential(nn.Linear(WIDTH, 16), Mixes(), nn.ReLU(), nn.Linear(16, 3))
    x, y = torch.randn(N, WIDTH), torch.randint(0, 3, (N,))

    (only,) = found(tmp_path, model, lambda m: functional.cross_entropy(m(x), y))
    assert (only.code, only.site) == ("HC241", "1")


class Streams(nn.Module):
    """Goes on from the state that it has left, one for each row of the batch."""

    def __init__(self, how):
        super().__init__()
        self.rnn, self.head = nn.GRU(WIDTH, 5, batch_first=True), nn.Linear(5, 3)
        self.how, state = how, torch.randn(1, N, 5)
        if how == "buffer":
            self.register_buffer("state", state)
        else:
            self.state = {"attribute": state, "list": [state]}[how]

    def forward(self, x):
        state = self.state[-1] if self.how == "list" else self.state
        out, state = self.rnn(x, state.detach().clone())
        if self.how == "buffer":
            self.state.copy_(state.detach())
        else:
            self.state = [state] if self.how == "list" else state
        return self.head(out[:, -1])


@pytest.mark.parametrize("how", ["attribute", "list", "buffer"])
def test_a_state_that_the_model_keeps(tmp_path, how):
    x, y = torch.randn(N, LENGTH, WIDTH), torch.arange(N) % 3

    assert found(tmp_path, Streams(how), lambda m: functional.cross_entropy(m(x), y)) == []


def test_what_was_given_and_made_may_be_kept_and_nobody_is_excused(tmp_path):
    class Numbered(nn.Module):
        """Adds its number to each row, and keeps what it saw for those who look."""

        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(WIDTH, 16), nn.Linear(16, 3)

        def forward(self, x):
            self.seen, self.made = x, self.body(x) + torch.arange(len(x))[:, None]
            return self.head(self.made.relu())

    x, y = torch.randn(N, WIDTH), torch.randint(0, 3, (N,))

    told = found(tmp_path, Numbered(), lambda m: functional.cross_entropy(m(x), y))
    assert {each.code for each in told} == {"HC241"}
    assert any(each.why[0].startswith("the rows of the batch rolled by one") for each in told)


def test_a_contrastive_loss_inside_the_model(tmp_path):
    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8)

        def forward(self, x, y):
            scores = functional.normalize(self.a(x)) @ functional.normalize(self.b(y)).t()
            return scores, functional.cross_entropy(scores * 5, torch.arange(len(x)))

    x, y = torch.randn(N, WIDTH), torch.randn(N, WIDTH)

    assert found(tmp_path, Towers(), lambda m: m(x, y)[1]) == []


def test_lengths_in_falling_order(tmp_path):
    class Padded(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.rnn = nn.Embedding(20, WIDTH), nn.LSTM(WIDTH, WIDTH, batch_first=True)
            self.head = nn.Linear(WIDTH, 3)

        def forward(self, ids, lengths):
            packed = rnn.pack_padded_sequence(self.tokens(ids), lengths, batch_first=True)
            return self.head(self.rnn(packed)[1][0][-1])

    lengths = torch.tensor([6, 5, 3, 2])
    ids = torch.randint(1, 20, (N, LENGTH)).masked_fill(torch.arange(LENGTH) >= lengths.unsqueeze(1), 0)
    y = torch.tensor([0, 1, 2, 1])

    assert found(tmp_path, Padded(), lambda m: functional.cross_entropy(m(ids, lengths), y)) == []


def test_a_prefix_that_sees_itself(tmp_path):
    class Prefix(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.qkv, self.head = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, 24), nn.Linear(WIDTH, 20)

        def forward(self, ids):
            x = self.tokens(ids)
            q, k, v = self.qkv(x).chunk(3, -1)
            hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
            hidden[:3, :3] = False
            return self.head(x + (q @ k.mT).masked_fill(hidden, -1e9).softmax(-1) @ v)

    ids = torch.randint(0, 20, (N, LENGTH))
    labels = ids.roll(-1, 1).clone()
    labels[:, :2] = -100  # the prefix is given
    labels[:, -1] = -100

    def step(model):
        return functional.cross_entropy(model(ids).flatten(0, 1), labels.flatten())

    assert found(tmp_path, Prefix(), step) == []


def test_an_encoder_that_fills_in_hidden_tokens(tmp_path):
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
    model = nn.Sequential(nn.Embedding(20, WIDTH), nn.TransformerEncoder(layer, 1), nn.Linear(WIDTH, 20))
    labels = torch.randint(1, 20, (N, LENGTH))
    ids = labels.masked_fill(torch.rand(N, LENGTH) < 0.5, 0)

    assert found(tmp_path, model, lambda m: functional.cross_entropy(m(ids).flatten(0, 1), labels.flatten())) == []


def test_an_autoencoder(tmp_path):
    model = nn.Sequential(nn.Linear(WIDTH, 3), nn.Tanh(), nn.Linear(3, WIDTH))
    x = torch.randn(16, WIDTH)

    assert found(tmp_path, model, lambda m: functional.mse_loss(m(x), x)) == []


@pytest.mark.parametrize("is_drawn", [True, False])
def test_a_mixup_of_what_a_layer_gave_is_meant(tmp_path, is_drawn):
    """By numbers that are drawn; a fixed place of another sample is no mixup."""
    x, y = torch.randn(6, WIDTH), torch.randint(0, 3, (6,))
    head = nn.Linear(WIDTH, 3)

    def step(model):
        h = model(x)
        other = h[torch.randperm(6)] if is_drawn else h.roll(1, 0)
        return functional.cross_entropy(head(0.7 * h + 0.3 * other), y)

    told = found(tmp_path, nn.Linear(WIDTH, WIDTH), step)
    assert [f.code for f in told] == ([] if is_drawn else ["HC241"])


class InFloat8(nn.Module):
    """Cast by one scale for the whole tensor, as tensor-wise recipes do: a larger sample moves the others' rounding."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x):
        h = self.inner(x)
        scale = h.abs().max().detach() / 448
        return self.head(h + ((h / scale).to(torch.float8_e4m3fn).float() * scale - h).detach())


def test_one_scale_for_a_whole_tensor_in_float8(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(N, LENGTH, WIDTH) * torch.tensor([1.0, 3.0, 0.5, 7.0]).view(N, 1, 1)
    y = torch.randint(0, 3, (N, LENGTH))

    assert found(tmp_path, InFloat8(), lambda m: functional.cross_entropy(m(x).flatten(0, 1), y.flatten())) == []


def test_one_number_a_sample_is_no_second_dimension_to_exchange():
    """Of one row there is no neighbour, and an index of one is none that a device survives."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(1, 1), torch.randn(N, 1), torch.randn(N, 1)

    looked = check_relations(model, x, functional.mse_loss, labels=y)

    assert not any("INDICES" in why or "index" in why.lower() for why in looked.not_asked.values())


@pytest.mark.parametrize("is_residual", [False, True])
def test_a_reward_that_is_a_part_of_the_state(tmp_path, is_residual):
    state = torch.randn(32, 4)
    action, later = torch.randint(0, 2, (32, 1)), state + 0.1 * torch.randn(32, 4)

    def td_error(model):
        best = model(later).max(1).values
        target = state[:, 0] + 0.9 * (best if is_residual else best.detach())
        return functional.mse_loss(model(state).gather(1, action).squeeze(1), target)

    assert found(tmp_path, nn.Linear(4, 2), td_error) == []


@pytest.mark.parametrize(
    "criterion", [functional.mse_loss, functional.smooth_l1_loss, functional.binary_cross_entropy_with_logits]
)
def test_a_label_that_is_a_part_of_the_input_is_named(tmp_path, criterion):
    x = torch.randn(32, 4)
    x[:, 1] = (x[:, 1] > 0).float() if "binary" in criterion.__name__ else x[:, 1]
    label = x[:, 1].clone()

    (told,) = found(tmp_path, nn.Linear(4, 1), lambda model: criterion(model(x).squeeze(1), label))

    assert told.code == "HC244"


@pytest.mark.parametrize("is_named", [False, True])
def test_lengths_that_come_in_a_list(tmp_path, is_named):
    """They are not tensors, so they stay where they are when the batch is turned."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.LSTM(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, 3)

        def forward(self, x, lengths):
            packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return self.head(self.rnn(packed)[1][0][-1])

    x, y, lengths = torch.randn(5, LENGTH, WIDTH), torch.arange(5) % 3, [6, 5, 4, 2, 1]

    def step(model):
        return functional.cross_entropy(model(x, lengths=lengths) if is_named else model(x, lengths), y)

    assert found(tmp_path, Net(), step) == []
