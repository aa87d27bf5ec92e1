"""A second head predicts the token after the next one, and must not be given it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hypocenter.relations.check import Looked
from hypocenter.testing import RelationBroken, check_relations
from tests.relations.test_relations import LENGTH, VOCAB, WIDTH, Attention, N


class Ahead(nn.Module):
    """Given the whole text, it gives logits of the next token, and of the one after it.

    Args:
        given: how many places later the token stands that the second head is given.
        sees_all: the second head sees what all tokens are, as the code of an autoencoder does.
    """

    def __init__(self, given: int = 1, *, sees_all: bool = False) -> None:
        super().__init__()
        self.tokens, self.trunk, self.further = nn.Embedding(VOCAB, WIDTH), Attention(), Attention()
        self.merge, self.head, self.given = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, VOCAB), given
        self.sees_all = sees_all

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        n = ids.shape[1] - 2
        hidden = self.trunk(self.tokens(ids[:, :n]))
        more = self.tokens(ids[:, self.given : self.given + n])
        if self.sees_all:
            more = more + self.tokens(ids).mean(1, keepdim=True)
        return self.head(hidden), self.head(self.further(self.merge(torch.cat([hidden, more], -1))))


def looked_at(model: nn.Module) -> Looked:
    torch.manual_seed(1)
    ids = torch.randint(0, VOCAB, (N, LENGTH + 3))

    def loss(given: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
        first, second = given
        n = first.shape[1]
        one = functional.cross_entropy(first.flatten(0, 1), labels[:, 1 : n + 1].flatten())
        return one + 0.3 * functional.cross_entropy(second.flatten(0, 1), labels[:, 2 : n + 2].flatten())

    return check_relations(model, (ids,), loss, labels=ids.clone(), only=("future",))


def test_a_head_that_is_given_what_it_predicts_is_told() -> None:
    with pytest.raises(RelationBroken, match="2 places later") as raised:
        looked_at(Ahead(given=2))

    assert [each.code for each in raised.value.looked.broken] == ["HC242"]


def test_a_head_that_is_given_the_token_before_is_not() -> None:
    assert "future" in looked_at(Ahead(given=1)).held


@pytest.mark.parametrize("given", [1, 2])
def test_a_model_that_sees_all_is_not_asked(given: int) -> None:
    looked = looked_at(Ahead(given=given, sees_all=True))

    assert not looked.broken
