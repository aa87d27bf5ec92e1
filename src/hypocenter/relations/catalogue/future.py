"""A model that predicts the next token does not see it.

What it means
    What the loss asks for at a place is the input of the next one. So nothing that comes later may reach the output
    there. If it does, the loss falls by copying, and the model cannot generate: a causal mask that is missing, off by
    one, or applied to the wrong axis, a convolution that pads on both sides, positions that are turned round.

How it is decided
    From the gradient of the loss by its logits it is read which token is asked for at each place, whoever shifts, masks
    or skips. Where it is the next token of an input, the later tokens of that input are replaced in each sample, from
    another place on in each, and the outputs before must stay, but for those at places of padding. The first module
    that shows it is named. Models of which the loss asks something else are not asked.
    Where an output is asked for a token that stands one to three places later in a longer input, as that of a second
    head, that token and the later ones are replaced; it counts where the model sees that token, and none behind it.

What to do
    Look at the mask of the named module.

When it is wrong
    Where a model that sees everything is trained to copy, on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hypocenter.relations.facts import CannotTell, Facts, shift_of
from hypocenter.relations.masks import but_padding
from hypocenter.relations.relation import Trial, relation
from hypocenter.relations.subject import Subject
from hypocenter.relations.tokens import asked_replaced, later_replaced, targets_of


@relation("future", "HC242", order=2)
def ask(subject: Subject, facts: Facts) -> Iterator[Trial]:
    """Yield trials that replace the tokens behind some place of each sample; the outputs before them must stay."""
    if facts.targets is None or facts.logits is None:
        raise CannotTell("which tokens the loss asks for is not seen")
    longer = [
        trial
        for each in subject.of_model if not any(each.place == label.place for label in facts.labels)
        for key, targets in facts.scored if (trial := asked_replaced(each, key, targets, facts)) is not None
    ]  # fmt: skip
    yield from longer
    inputs = [(each, targets) for each in subject.of_model if (targets := targets_of(each, facts)) is not None]
    shifted = [(each, targets) for each, targets in inputs if shift_of(each.tensor, targets) == 1]
    shifted = [(each, t) for each, t in shifted if not any(each.place == label.place for label in facts.labels)]
    if not shifted and longer:
        return
    if not shifted:
        raise CannotTell("the loss does not ask for the next token of an input")
    trials = [later_replaced(each, but_padding(each, targets, subject), facts) for each, targets in shifted]
    for number, trial in enumerate(trials):
        if trial is not None:
            others = tuple(t for i, t in enumerate(trials) if i != number and t is not None)
            yield replace(trial, otherwise=others)
