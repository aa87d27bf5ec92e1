"""Documents that are packed into one row and see each other are found; what is meant to be read together is not."""

from __future__ import annotations

import pytest
import torch

from hypocenter.testing import RelationBroken, check_relations
from tests.relations.test_relations import VOCAB, Attention, Language, of_tokens

LENGTHS = (5, 4, 6, 5)
LENGTH = sum(LENGTHS)


def packed(n_rows: int = 2):
    """Return tokens, labels that ask for nothing across documents, and positions."""
    torch.manual_seed(1)
    ids = torch.randint(0, VOCAB, (n_rows, LENGTH))
    positions = torch.cat([torch.arange(n) for n in LENGTHS]).expand(n_rows, -1).contiguous()
    labels = ids.roll(-1, 1)
    labels[positions.roll(-1, 1) == 0] = -100
    return ids, labels, positions


def in_blocks(length: int) -> torch.Tensor:
    number = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    return (number.unsqueeze(0) == number.unsqueeze(1)) & torch.ones(length, length, dtype=torch.bool).tril()


class Packed(Language):
    """Positions are embedded; attention may go across documents."""

    def __init__(self, sees=None):
        super().__init__(Attention(sees) if sees else Attention())
        if sees:
            self.layers[0] = Attention(sees)
        self.positions = torch.nn.Embedding(LENGTH, self.head.in_features)

    def forward(self, ids, position_ids):
        x = self.tokens(ids) + self.positions(position_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@pytest.mark.parametrize("n_rows", [1, 2])
def test_documents_that_see_each_other(n_rows):
    ids, labels, positions = packed(n_rows)

    with pytest.raises(RelationBroken, match="documents") as raised:
        check_relations(Packed(), {"ids": ids, "position_ids": positions}, of_tokens, labels=labels)

    assert [(each.code, each.module) for each in raised.value.looked.broken] == [("HC241", "layers.0")]


def test_documents_that_do_not():
    ids, labels, positions = packed()

    looked = check_relations(Packed(in_blocks), (ids, positions), of_tokens, labels=labels)

    assert {"documents", "future"} <= set(looked.held)


def asks_across(ids, labels, positions):
    """The first token of the next document is asked for: it is read on."""
    return ids, ids.roll(-1, 1), positions


def prefix(ids, labels, positions):
    """Positions begin anew behind a prompt of which nothing is asked."""
    positions = torch.cat([torch.arange(9), torch.arange(LENGTH - 9)]).expand(len(ids), -1).contiguous()
    labels = ids.roll(-1, 1)
    labels[:, :9] = labels[:, -1] = -100
    return ids, labels, positions


def one_document(ids, labels, positions):
    return ids, labels, torch.arange(LENGTH).expand(len(ids), -1).contiguous()


def types(ids, labels, positions):
    """Zeros and ones that are no positions."""
    return ids, labels, (torch.arange(LENGTH) >= 9).long().expand(len(ids), -1).contiguous()


@pytest.mark.parametrize("change", [asks_across, prefix, one_document, types])
def test_what_is_not_known_to_be_packed(change):
    ids, labels, positions = change(*packed())

    looked = check_relations(Packed(), (ids, positions), of_tokens, labels=labels)

    assert "future" in looked.held
    assert looked.not_asked["documents"] == "no row is known to hold several documents"
