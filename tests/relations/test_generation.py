"""Positions of text behind padding: those of training are those of `generate()`."""

from __future__ import annotations

import pytest
import torch

from hypocenter.testing import RelationBroken, check_relations
from tests.healthy.models import VOCAB, ZOO

N, LENGTH = 4, 12
NOT_ASKED = "no model that can generate is given padding on the left, and no positions"


def batch(*, is_left: bool = True):
    """Return keyword arguments: texts of several lengths, padded."""
    torch.manual_seed(1)
    n_real = torch.tensor([[12], [9], [7], [4]])
    place = torch.arange(LENGTH)
    mask = (place >= LENGTH - n_real if is_left else place < n_real).long()
    ids = torch.randint(1, VOCAB, (N, LENGTH)) * mask
    before = torch.nn.functional.pad(mask, (1, -1))  # nothing is asked for of padding: it attends to all, or to nothing
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask * before == 0, -100)}


def model(name: str, dtype: torch.dtype = torch.float32):
    return ZOO[name].make(ZOO[name].attention[-1]).to(dtype)


def test_learned_positions_that_count_padding():
    with pytest.raises(RelationBroken, match="generation") as raised:
        check_relations(model("gpt2"), batch())

    assert [each.code for each in raised.value.looked.broken] == ["HC243"]


@pytest.mark.parametrize("name", ["llama", "opt"])  # distances; positions that are made of the mask
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_positions_hold(name, dtype):
    assert "generation" in check_relations(model(name, dtype), batch()).held


def test_experts_that_are_chosen_by_rounding_hold():
    assert "generation" in check_relations(model("mixtral", torch.bfloat16), batch()).held


def test_padding_that_attends_to_all_is_not_the_future():
    given = with_positions()
    given["labels"] = given["input_ids"].masked_fill(given["attention_mask"] == 0, -100)  # the first token counts

    assert "future" in check_relations(model("gpt2"), given).held


def with_positions():
    given = batch()
    return given | {"position_ids": (given["attention_mask"].cumsum(1) - 1).clamp(min=0)}


@pytest.mark.parametrize(("name", "given"), [
    ("gpt2", with_positions()), ("gpt2", batch(is_left=False)), ("mamba", batch()), ("bert", batch()),
])  # fmt: skip
def test_what_is_not_asked(name, given):
    looked = check_relations(model(name), given)

    assert not looked.broken
    assert looked.not_asked["generation"] == NOT_ASKED
