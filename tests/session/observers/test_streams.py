import contextlib

import pytest
import torch
from torch import nn
from torch.nn import functional

import hypocenter
from hypocenter.record.reader import open_run


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.drop, self.head = nn.Embedding(16, 8), nn.Dropout(0.5), nn.Linear(8, 16)

    def forward(self, tokens, weights=None):
        hidden = self.drop(self.embedding(tokens))
        return self.head(hidden if weights is None else hidden * weights[..., None])


def train(folder, *, n_steps=5, n_micro=1, swap=None, seed=0, relabel=None, **options):
    torch.manual_seed(seed)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, 16, (2, 5), generator=data) for _ in range(n_steps * n_micro)]
    if swap:
        batches[swap[0]], batches[swap[1]] = batches[swap[1]], batches[swap[0]]
    with hypocenter.watch(out=folder, **options) if folder else contextlib.nullcontext():
        for i, tokens in enumerate(batches):
            labels = tokens.clone()
            if relabel == i:
                labels[0, 0] = (labels[0, 0] + 1) % 16
            logits = model(tokens, weights=torch.ones(2, 5))
            functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
            if i % n_micro == n_micro - 1:
                optimizer.step()
                optimizer.zero_grad()
    return model


def digests_of(folder):
    rows = [r for r in open_run(folder).readings() if r.phase == "data"]
    return {(r.step, r.microbatch, r.site, r.port): r.digest for r in rows}


@pytest.mark.parametrize("level", ["sentinel", "modules", "ops"])
def test_integer_inputs_and_labels_have_a_digest_at_every_step_of_a_single_process(tmp_path, level):
    train(tmp_path / "run", level=level)

    rows = [r for r in open_run(tmp_path / "run").readings() if r.site.startswith("batch.")]

    at_all = {(r.site, r.port) for r in rows if r.step == 4}
    assert at_all == {("batch.in[0]", "digest"), ("batch.loss[0]", "digest"), ("batch.weights", "field")}
    assert {r.step for r in rows if r.site == "batch.in[0]"} == set(range(5))
    tokens = next(r for r in rows if r.site == "batch.in[0]")
    assert (tokens.shape, tokens.dtype, tokens.summary.n, tokens.port) == ((2, 5), "int64", 10, "digest")
    of_floats = {
        port: {r.step for r in rows if (r.site, r.port) == ("batch.weights", port)} for port in ("digest", "field")
    }
    assert of_floats == {"digest": {0, 1, 2}, "field": set(range(5))}


def test_each_micro_batch_has_its_own(tmp_path):
    train(tmp_path / "a", n_steps=3, n_micro=2)
    train(tmp_path / "b", n_steps=3, n_micro=2, swap=(2, 3))

    a, b = digests_of(tmp_path / "a"), digests_of(tmp_path / "b")

    moved = {key[:3] for key in a if a[key] != b[key]}
    assert moved == {(1, m, site) for m in (0, 1) for site in ("batch.in[0]", "batch.loss[0]")}
    assert a[1, 0, "batch.in[0]", "digest"] == b[1, 1, "batch.in[0]", "digest"]


def test_one_other_label_shows(tmp_path):
    train(tmp_path / "a")
    train(tmp_path / "b", relabel=3)

    a, b = digests_of(tmp_path / "a"), digests_of(tmp_path / "b")

    assert {key[:3] for key in a if a[key] != b[key]} == {(3, 0, "batch.loss[0]")}


def test_random_states_of_the_first_steps_tell_seeds_apart(tmp_path):
    train(tmp_path / "a")
    train(tmp_path / "same")
    train(tmp_path / "other", seed=5)

    a, same, other = (
        {k: v for k, v in digests_of(tmp_path / name).items() if k[2] == "rng.cpu"} for name in ("a", "same", "other")
    )

    assert sorted(key[0] for key in a) == [0, 1, 2]
    assert a == same
    assert all(a[key] != other[key] for key in a)


def test_training_is_the_same_to_the_bit(tmp_path):
    plain = train(None).state_dict()

    watched = train(tmp_path / "run").state_dict()

    assert all(torch.equal(watched[key], plain[key]) for key in plain)


def test_a_program_that_never_updates_piles_nothing_up(tmp_path, monkeypatch):
    monkeypatch.setattr("hypocenter.session.observers.streams.MAX_SENT", 2)
    sent = []
    keep = lambda self, given, **_: sent.append(given)  # noqa: E731
    monkeypatch.setattr("hypocenter.session.observers.streams.Streams._send", keep)

    with hypocenter.watch(out=tmp_path / "run"):
        model = Net()
        unused = torch.optim.SGD(model.parameters(), lr=0.1)  # without any, updates are the program's own work
        for _ in range(5):
            model(torch.zeros(1, 2, dtype=torch.int64)).mean().backward()

    assert len(sent) == 2
    assert unused.param_groups


def test_a_digest_that_rides_with_the_gradients_is_the_same(tmp_path, monkeypatch):
    train(tmp_path / "a")
    monkeypatch.setattr("hypocenter.session.observers.streams.host_values", lambda values: None)  # as on a GPU

    train(tmp_path / "b")

    assert digests_of(tmp_path / "a") == digests_of(tmp_path / "b")


def test_rows_and_shares_are_recorded_at_every_step(tmp_path):
    train(tmp_path / "run")

    rows = [r for r in open_run(tmp_path / "run").readings() if r.site.startswith("batch.")]

    for site in {row.site for row in rows}:
        (*each,) = (row for row in rows if row.site == site and row.shares)
        assert [row.step for row in each] == list(range(5))
        assert all(len(row.shares) == 23 for row in each)


@pytest.mark.parametrize("is_used_again", [False, True])
def test_of_two_optimizers_in_turn_each_has_the_batch_that_its_loss_needs(tmp_path, is_used_again):
    torch.manual_seed(0)
    made = nn.Sequential(nn.Embedding(512, 4), nn.Linear(4, 4))
    judge = nn.Linear(4, 1)
    of_made, of_judge = torch.optim.Adam(made.parameters(), 1e-3), torch.optim.Adam(judge.parameters(), 1e-3)
    given = []
    with hypocenter.watch(out=tmp_path / "run"):
        for _ in range(4):
            first, second = torch.randperm(512)[:6].split(3)
            fakes = made(first)
            of_judge.zero_grad()
            judge(fakes.detach()).mean().backward()
            of_judge.step()
            of_made.zero_grad()
            judge(fakes if is_used_again else made(second)).mean().neg().backward()
            of_made.step()
            given += [first, first if is_used_again else second]

    rows = [r for r in open_run(tmp_path / "run").readings() if (r.site, r.port) == ("batch.in[0]", "digest")]
    ints = [r.digest for r in rows if r.dtype == "int64"]
    assert len(ints) == len(given)
    same = [[bool((a == b).all()) for b in given] for a in given]
    assert [[a == b for b in ints] for a in ints] == same
