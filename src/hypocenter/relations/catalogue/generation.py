"""What is trained is what generates: text behind padding has the positions that `generate()` gives it.

What it means
    A model of transformers that is given padding on the left, a mask and no positions counts the padding too, while
    `generate()` hands it positions that begin with the text. Where positions are learned one by one, a text is trained
    at other positions than it is continued at.

How it is decided
    The loss asks for the next token, the mask is 0 before the text of some samples, and the call has no `position_ids`.
    The model is asked for those that its `generate()` would make of this mask, and is given them in a replay: the
    scores at real places must stay. Rotary positions only count distances, and hold. The sample with padding that moves
    least is judged, and a rounding of the angle at the last position is allowed for.

What to do
    Give the model `position_ids=(attention_mask.cumsum(1) - 1).clamp(min=0)`, or pad on the right.

When it is wrong
    Where the model never generates by `generate()`, and is always given as much padding.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from hypocenter.relations.facts import CannotTell, Facts, shift_of
from hypocenter.relations.parts import LeastRow
from hypocenter.relations.relation import Trial, relation
from hypocenter.relations.subject import TOLERANCE, Given, Subject
from hypocenter.relations.tokens import targets_of
from hypocenter.tap.names import unwrap

_POSITIONS = "position_ids"
_ROUNDINGS = 4  # of an angle: its position times the epsilon of float32


@relation("generation", "HC243", order=5)
def ask(subject: Subject, facts: Facts) -> Iterator[Trial]:
    """Yield a trial that gives the model the positions of `generate()`; scores at real places must stay."""
    for ids in subject.of_model:
        targets, module = targets_of(ids, facts), subject.module_at(ids.place[0])
        if targets is None or module is None or shift_of(ids.tensor, targets) != 1:
            continue
        beside = [each for each in subject.of_model if each.place[0] == ids.place[0]]
        mask = next((each.tensor for each in beside if _is_mask(each, ids)), None)
        if mask is None or any(_POSITIONS in each.name for each in beside):
            continue
        positions = _of_generation(module, ids.tensor, mask)
        if positions is None:
            continue
        least = _ROUNDINGS * ids.tensor.shape[1] * torch.finfo(torch.float32).eps
        yield Trial(
            changed={(ids.place[0], _POSITIONS): positions}, parts=LeastRow(_behind_padding(mask).cpu()),
            what="the positions that generate() makes of attention_mask given", whom="the scores behind padding",
            keys=frozenset({facts.logits}), least=max(least, facts.tolerance, TOLERANCE),
        )  # fmt: skip
        return
    raise CannotTell("no model that can generate is given padding on the left, and no positions")


def _is_mask(given: Given, ids: Given) -> bool:
    """Return whether this is a mask of zeros and ones with padding on the left, in at least one sample."""
    mask = given.tensor
    if "attention_mask" not in given.name or mask.shape != ids.tensor.shape or mask.shape[1] < 2:
        return False
    if not bool(((mask == 0) | (mask == 1)).all()) or bool((mask == 0).all(1).any()):
        return False
    return bool((mask[:, 0] == 0).any()) and bool((mask[:, 1:].int() >= mask[:, :-1].int()).all())


def _behind_padding(mask: Tensor) -> Tensor:
    return (mask == 1) & (mask[:, :1] == 0)


def _of_generation(module: nn.Module, ids: Tensor, mask: Tensor) -> Tensor | None:
    """Return the positions that the model's own `generate()` begins with; None where it takes or makes none."""
    model = unwrap(module)
    make = getattr(model, "_prepare_position_ids_for_generation", None)
    if make is None or _POSITIONS not in inspect.signature(model.forward).parameters:
        return None
    made = make(ids, {"input_ids": ids, "attention_mask": mask})
    is_within = isinstance(made, Tensor) and made.shape == ids.shape and bool((made >= 0).all())
    return made if is_within and bool((made < ids.shape[1]).all()) else None
