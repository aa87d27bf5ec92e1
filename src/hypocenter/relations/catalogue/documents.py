"""A document does not depend on the others that are packed into its row.

What it means
    Several documents stand one after the other in a row, and their positions begin anew with each. The tokens of some
    of them are replaced, and the outputs for the others must stay. If they do not, attention or a state crosses from
    one document into the next, which the positions, and a loss that does not ask across, say is another.

How it is decided
    Positions are an input of the same call that counts up from 0, and begins at 0 again inside a row. A document counts
    where the loss asks for tokens in it. The loss must ask nowhere for the first token of the next one. Then the tokens
    of every second document are replaced by others of the batch, and the outputs for the others must stay.

What to do
    Give the model a mask of blocks, the lengths of the documents (`cu_seqlens`), or, in transformers, positions and no
    `attention_mask`.

When it is wrong
    Where a document is meant to be read with the one before it although positions begin anew, and both are trained.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hypocenter.relations.facts import CannotTell, Facts, shift_of
from hypocenter.relations.parts import Places
from hypocenter.relations.relation import Trial, relation
from hypocenter.relations.subject import Given, Subject
from hypocenter.relations.tokens import successors, targets_of

_LEAST = 2  # places of a document, after whose first token something is asked for


@relation("documents", "HC241", order=3, needs=("future",))
def ask(subject: Subject, facts: Facts) -> Iterator[Trial]:
    """Yield a trial that replaces every second document of each row; the outputs for the others must stay."""
    is_asked = False
    for each in subject.of_model:
        targets = targets_of(each, facts)
        if targets is None or shift_of(each.tensor, targets) != 1:
            continue
        number = next((n for other in subject.of_model if (n := _numbers(other, each, targets)) is not None), None)
        if number is None:
            continue
        changes, stays = _alternating(number, targets >= 0)
        if not bool(stays.any()):
            continue
        others = successors(each.tensor, targets[targets >= 0])
        is_asked = True
        yield Trial(
            changed={each.place: torch.where(changes, others, each.tensor)}, parts=Places(stays.cpu()),
            what="other documents packed into the row replaced", whom="the outputs for the documents beside them",
            keys=frozenset({facts.logits}),
        )  # fmt: skip
    if not is_asked:
        raise CannotTell("no row is known to hold several documents")


def _numbers(positions: Given, ids: Given, targets: Tensor) -> Tensor | None:
    """Return the number of the document at each place of `ids`, if this input holds their positions; else None."""
    values = positions.tensor
    is_whole = values.dtype in (torch.int64, torch.int32)
    if positions is ids or positions.place[0] != ids.place[0] or not is_whole or values.dim() != 2:
        return None
    if values.shape not in (targets.shape, (1, targets.shape[1])):
        return None
    values = values.expand_as(targets)
    begins = values == 0
    is_counted = begins[:, 1:] | (values[:, 1:] == values[:, :-1] + 1)
    if not bool(begins[:, 0].all()) or not bool(is_counted.all()):
        return None
    if bool(((targets[:, :-1] >= 0) & begins[:, 1:]).any()):
        return None  # the loss asks across
    return begins.cumsum(1) - 1


def _alternating(number: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
    """Return which places of [n, length] are changed, and which must stay: those of trained documents, in turn."""
    changes, stays = torch.zeros_like(asked), torch.zeros_like(asked)
    for row in range(len(number)):
        documents = [number[row] == each for each in range(int(number[row, -1]) + 1)]
        trained = [each for each in documents if int(each.sum()) >= _LEAST and bool(asked[row][each].any())]
        for each in trained[::2] if len(trained) > 1 else ():
            changes[row] |= each
        for each in trained[1::2]:
            stays[row] |= each & asked[row]
    return changes, stays
