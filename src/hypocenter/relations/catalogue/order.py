"""The place of a sample in its batch does not matter.

What it means
    The batch is turned by one row; outputs, turned back, must stay. If they do not, something counts the rows of the
    batch as if they were places: a positional encoding that is added along the axis of the batch, for one.

How it is decided
    One replay with all inputs turned alike, dropout off. Asked only where the first dimension is the batch beyond
    doubt, in all that the model is given, and of outputs that have it first; not where the model goes on from a state
    with rows of its own, which stay where they are.

What to do
    Look at what the named module adds to its input, and along which dimension.

When it is wrong
    Where a model is meant to treat the rows of a batch differently.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from hypocenter.relations.facts import CannotTell, Facts
from hypocenter.relations.parts import SameRows, WholeOf
from hypocenter.relations.relation import Trial, on_all_ranks, relation
from hypocenter.relations.subject import Subject


@relation("order", "HC241", order=5)
def ask(subject: Subject, facts: Facts) -> Iterator[Trial]:
    """Yield a trial that moves all rows on by one; the outputs must be the same, moved on as well."""
    n = facts.n_rows
    if n < 2 or facts.relates_rows or (facts.may_be_second and not facts.is_certain):
        raise CannotTell("which dimension is the batch is not known for certain")
    inputs = [each for each in subject.of_model if each.tensor.dim() > 0 and each.tensor.shape[0] == n]
    if subject.has_list_of(n):
        raise CannotTell("the model is told of each sample in a list")
    if subject.carries(n, facts.ran.read):
        raise CannotTell("the model is also given what was computed before: its state, which has rows too")
    changed = {each.place: each.tensor.roll(1, 0) for each in inputs}
    if all(torch.equal(changed[each.place], each.tensor) for each in inputs):
        raise CannotTell("all samples are the same")

    def turned_back(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor] | None:
        is_of_rows = new.dim() > 0 and new.shape[0] == n
        return (old, new.roll(-1, 0) if is_of_rows else new) if old.shape == new.shape else None

    told = Trial(
        changed=changed, parts=WholeOf(n), aligns=turned_back, what="the rows of the batch rolled by one",
        whom="the outputs, turned back,",
    )  # fmt: skip
    moved_about = replace(told, parts=SameRows(n), excuse="samples change places inside the model")
    taken = torch.arange(n, device="cpu").roll(1)
    yield replace(told, otherwise=(moved_about, *on_all_ranks(told, taken, subject)))
