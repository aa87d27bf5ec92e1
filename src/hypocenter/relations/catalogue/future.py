"""A model that predicts the next token does not see it.

What it means
    What the loss asks for at a place is the input of the next one. So nothing that comes later may reach the output
    there. If it does, the loss falls by copying, and the model cannot generate: a causal mask that is missing, off by
    one, or applied to the wrong axis, a convolution that pads on both sides, positions that are turned round.

How it is decided
    From the gradient of the loss by its logits it is read which token is asked for at each place, whoever shifts, masks
    or skips. Where it is the next token of an input, the later tokens of that input are replaced in each sample, from
    another place on in each, and the outputs before must stay. The first module that shows it is named. Models of
    which the loss asks something else are not asked.

What to do
    Look at the mask of the named module.

When it is wrong
    Where a model that sees everything is trained to copy, on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from hypocenter.relations.facts import CannotTell, Facts, shift_of
from hypocenter.relations.parts import Places
from hypocenter.relations.relation import Trial, relation
from hypocenter.relations.subject import Given, Subject


@relation("future", "HC242", order=2)
def ask(subject: Subject, facts: Facts) -> Iterator[Trial]:
    """Tokens after another place in each sample."""
    if facts.targets is None or facts.logits is None:
        raise CannotTell("which tokens the loss asks for is not seen")
    inputs = [(each, targets) for each in subject.of_model if (targets := _targets_of(each, facts)) is not None]
    shifted = [(each, targets) for each, targets in inputs if shift_of(each.tensor, targets) == 1]
    shifted = [(each, t) for each, t in shifted if not any(each.place == label.place for label in facts.labels)]
    if not shifted:
        raise CannotTell("the loss does not ask for the next token of an input")
    trials = [_trial(each, targets, facts) for each, targets in shifted]
    for number, trial in enumerate(trials):
        if trial is not None:
            others = tuple(t for i, t in enumerate(trials) if i != number and t is not None)
            yield replace(trial, otherwise=others)


def _targets_of(given: Given, facts: Facts) -> Tensor | None:
    """What is asked for, laid out as this input is."""
    tensor, targets = given.tensor, facts.targets
    is_text = tensor.dim() == 2 and tensor.dtype in (torch.int64, torch.int32)
    if targets is None or not is_text or tensor.shape[0] != facts.n_rows or targets.numel() != tensor.numel():
        return None
    return targets.reshape(tensor.shape)


def _trial(given: Given, targets: Tensor, facts: Facts) -> Trial | None:
    ids, n, length = given.tensor, facts.n_rows, given.tensor.shape[1]
    asked = (targets >= 0).cpu()
    stays, new = torch.zeros(n, length, dtype=torch.bool), ids.clone()
    for row in range(n):
        places = asked[row].nonzero()[:, 0].tolist()
        places = [place for place in places if place + 1 < length]
        if not places:
            continue
        cut = places[(row + 1) * (len(places) - 1) // (n + 1)] if n > 1 else places[len(places) // 2]
        later = _other(ids, row, cut + 1)
        if later is None:
            continue
        new[row, cut + 1 :] = later
        stays[row, : cut + 1] = asked[row, : cut + 1]
    if not bool(stays.any()):
        return None
    return Trial(
        changed={given.place: new},
        parts=Places(stays),
        what="later tokens replaced",
        whom="the outputs before them",
        keys=frozenset({facts.logits}),
    )


def _other(ids: Tensor, row: int, start: int) -> Tensor | None:
    """Other tokens from a place on: its own, turned by one; where these are all alike, those of another row."""
    own = ids[row, start:]
    turned = own.roll(1)
    if not torch.equal(own, turned):
        return turned
    for other in range(len(ids)):
        if not torch.equal(ids[other, start:], own):
            return ids[other, start:]
    return None
