"""`@hypocenter.relation`: a program says itself what must not matter; it is asked in tests and in runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.errors import UnknownNameError
from hypocenter.record.reader import open_run
from hypocenter.relations.relation import RELATIONS
from hypocenter.testing import RelationBroken, check_relations


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch):
    monkeypatch.setattr(RELATIONS, "_entries", RELATIONS.entries())
    monkeypatch.setattr("hypocenter.relations.own._own", {})


class Set(nn.Module):
    """A sum over things, which may be weighed by their place."""

    def __init__(self, *, counts=False):
        super().__init__()
        self.inner, self.head, self.counts = nn.Linear(4, 8), nn.Linear(8, 3), counts

    def forward(self, things, mask=None):
        h = self.inner(things).relu()
        return self.head((h * torch.arange(h.shape[1])[:, None] if self.counts else h).sum(1))


def say_order():
    @hypocenter.relation
    def order_of_things(inputs):
        return {"things": inputs["things"].flip(1)}


def asked(model, **options):
    torch.manual_seed(0)
    batch = options.pop("batch", (torch.randn(6, 5, 4),))
    return check_relations(model, batch, functional.cross_entropy, labels=torch.arange(6) % 3, **options)


def test_it_is_asked_among_the_others():
    say_order()

    assert "order_of_things" in asked(Set()).held
    with pytest.raises(RelationBroken, match="order_of_things: things changed as order_of_things says"):
        asked(Set(counts=True))


def test_outputs_are_turned_back_before_they_are_compared():
    class Same(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(x)

    @hypocenter.relation(name="turned", undo=lambda output: output.flip(1))
    def turned(inputs):
        return {"x": inputs["x"].flip(1)}

    looked = check_relations(Same(), torch.randn(6, 5, 4), lambda out: out.square().mean(), only=("turned",))
    assert looked.held == ["turned"]

    hypocenter.relation(turned, name="turned")  # from here on it is not turned back
    with pytest.raises(RelationBroken, match="turned"):
        check_relations(Same(), torch.randn(6, 5, 4), lambda out: out.square().mean(), only=("turned",))


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (lambda inputs: None, "it changes nothing"),
        (lambda inputs: {"other": inputs["things"]}, "the model is given no other, but things"),
        (lambda inputs: {"things": inputs["nothing"]}, "it raised KeyError"),
    ],
)
def test_what_cannot_be_asked_says_why(says, why):
    hypocenter.relation(says, name="mine")

    assert why in asked(Set(), only=("mine",)).not_asked["mine"]


def test_a_name_of_ours_is_refused():
    with pytest.raises(UnknownNameError, match="'samples' is registered twice"):
        hypocenter.relation(dict, name="samples")


def trained(out, relations):
    torch.manual_seed(0)
    model = Set(counts=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hypocenter.watch(model, optimizer, out=str(out), relations=relations):
        for _ in range(3):
            functional.cross_entropy(model(torch.randn(6, 5, 4)), torch.arange(6) % 3).backward()
            optimizer.step()
            optimizer.zero_grad()
    return [*model.state_dict().values(), torch.get_rng_state()]


def test_in_a_run_it_is_a_finding_and_draws_nothing_from_the_program(tmp_path):
    @hypocenter.relation
    def order_of_things(inputs):
        return {"things": inputs["things"].mul_(1)[:, torch.randperm(5)]}

    plain, asked = trained(tmp_path / "plain", "never"), trained(tmp_path / "run", "1")

    assert all(map(torch.equal, plain, asked))
    found = [f for f in diagnose(open_run(tmp_path / "run")).findings if f.code == "HC245"]
    assert [(f.step, f.severity) for f in found] == [(1, "warning")]
    assert "things changed as order_of_things says" in found[0].why[0]
