"""The output does not depend on the label.

What it means
    Labels are there to be compared with the output. If the output moves when labels are replaced, or the label is a
    part of an input, the model is shown the answer: the loss falls, and without the label it cannot do anything.

How it is decided
    Labels that the model is called with, and that the loss asks for, are replaced, and the outputs must stay. A decoder
    that is fed the labels is asked less: the output at a place may depend on earlier labels, not on its own or later
    ones. An input with columns that equal the label is replaced there, and the outputs must stay, where the loss draws
    an output to that label: a reward that is a part of the state is no label. A model that reads tokens up to each
    place and is asked for that very token, not for the next, sees its answer. Where it looks at no other token, or none
    tells of the next and there is no other input that it looks at, there is nothing else to learn. That is a note:
    some are meant to give back what they get.

What to do
    Take the label out of the input; shift labels by one place.

When it is wrong
    Where a model is meant to reproduce a part of its input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from hypocenter.relations.facts import CannotTell, Facts, shift_of
from hypocenter.relations.parts import AskedPlaces, Places, Whole
from hypocenter.relations.relation import Trial, relation
from hypocenter.relations.subject import Given, Place, Subject
from hypocenter.relations.tokens import earlier_replaced, follow_each_other, later_replaced, successors, targets_of

_AGREE = 0.99  # of what the loss asks for
_OF_A_MASK, _SOME = 2, 4096  # values, and how many are looked at
_LEAST_ROWS = 8  # samples with a column that equals the label, before it is one


@relation("label", "HC244", order=3)
def ask(subject: Subject, facts: Facts) -> Iterator[Trial]:
    """Yield trials that replace labels the model is given, and inputs that contain the label; the outputs must stay."""
    labels = [each for each in facts.labels if each.is_of_model]
    if not facts.labels:
        raise CannotTell("which input is the label is not known")
    replaced = _replaced(labels, facts)
    if len(replaced) > 1:
        together = {place: new for trial in replaced for place, new in trial.changed.items()}
        replaced = [replace(replaced[0], changed=together, what="labels replaced", otherwise=(), singly=(*replaced,))]
    is_asked = bool(replaced)
    yield from replaced
    for changed, name in _columns(subject, facts):
        is_asked = True
        yield Trial(changed=changed, parts=Whole(), what=f"the label in {name} replaced", whom="the outputs")
    for each in subject.of_model:
        trial = None if each.place in {label.place for label in labels} else _at_its_place(each, subject, facts)
        if trial is not None:
            is_asked = True
            yield trial
    if not is_asked and labels:
        raise CannotTell("which output is compared with the labels that the model gets is not seen")
    if not is_asked:
        raise CannotTell("the model is given no labels")


def _replaced(labels: Sequence[Given], facts: Facts) -> list[Trial]:
    """Return one trial for each label that the model is given; none where no output is known to hold scores."""
    if facts.logits is None or facts.targets is None:  # what comes out may be a loss, of each place
        return []
    asked = [each for each in labels if _are_asked_for(each.tensor, facts.targets)]
    if asked or len(labels) == 1:  # another one is the class of what is made; of a list each is a part of what is asked
        labels = asked
    pairs = [(each, new) for each in labels if not torch.equal(new := _others(each.tensor), each.tensor)]
    return [
        Trial(
            changed={each.place: new},
            parts=Whole(),
            what=f"{each.name} replaced",
            whom="the outputs",
            keys=frozenset({facts.logits}),
            otherwise=tuple(_fed_to_a_decoder(each.place, each.tensor)),
        )
        for each, new in pairs
    ]


def _are_asked_for(labels: Tensor, targets: Tensor) -> bool:
    """Return whether the loss asks for these labels, each at its place or at the one before."""
    if labels.is_floating_point():
        labels = labels.argmax(-1) if labels.dim() > 1 else labels
    later = [labels[:, 1:], nn.functional.pad(labels[:, 1:], (0, 1), value=-1)] if labels.dim() == 2 else []
    for each in (labels, *later):
        if each.numel() == targets.numel():
            counts = (targets >= 0).reshape(each.shape)
            there = targets.reshape(each.shape)[counts] == each[counts].to(targets.device)
            if int(there.sum()) >= _AGREE * max(1, int(counts.sum())):
                return True
    return False


def _others(labels: Tensor) -> Tensor:
    """Return the labels of other samples, or else of other places; labels below 0, which do not count, stay in place.

    What is no class must not come where one is looked up: a device would not survive that.
    """
    rolled = (labels.roll(1, dim) for dim in range(min(labels.dim(), 2)))
    if not labels.is_floating_point():
        rolled = (torch.where((labels >= 0) & (other >= 0), other, labels) for other in rolled)
    return next((other for other in rolled if not torch.equal(other, labels)), labels)


def _at_its_place(given: Given, subject: Subject, facts: Facts) -> Trial | None:
    """Return a trial that replaces tokens which the loss asks for at their own place, if the model sees no later
    ones."""
    targets = targets_of(given, facts)
    if targets is None or facts.logits is None or shift_of(given.tensor, targets) != 0:
        return None
    later = later_replaced(given, targets, facts)
    if later is None:
        return None
    own = _one_of_each(targets >= 0)
    new = torch.where(own, successors(given.tensor, targets[targets >= 0]), given.tensor)
    if torch.equal(new, given.tensor):
        return None
    return Trial(
        changed={given.place: new}, parts=AskedPlaces(own.cpu()),
        what=f"the token in {given.name} that is asked for replaced", whom="the output at its place",
        keys=frozenset({facts.logits}), only_if=later,
        exception="the loss asks for the input itself, which a model may be meant to give back",
        unless=(
            earlier_replaced(given, targets, facts) if follow_each_other(given.tensor)
            else _source_replaced(given, targets >= 0, subject, facts)
        ),
    )  # fmt: skip


def _source_replaced(given: Given, asked: Tensor, subject: Subject, facts: Facts) -> Trial | None:
    """Return a trial that gives other samples' sources to a decoder; None if it has no source."""
    sources = {
        each.place: each.tensor.roll(1, 0)
        for each in subject.of_model
        if each.place != given.place and each.tensor.dim() >= 2 and each.tensor.shape[0] == facts.n_rows
        and len(each.tensor.flatten()[:_SOME].unique()) > _OF_A_MASK
    }  # fmt: skip
    if not sources:
        return None
    return Trial(
        changed=sources, parts=AskedPlaces(asked.cpu()), what="sources of other samples given",
        whom="the outputs", keys=frozenset({facts.logits}),
    )  # fmt: skip


def _one_of_each(asked: Tensor) -> Tensor:
    """Return one place of each sample that is asked for, [n, length], another share of it in each: bool.

    Only one: what is asked for at a place may be a function of the tokens before it.
    """
    n = len(asked)
    share = (torch.arange(n, device=asked.device) + 1) / (n + 1)
    nth = (asked.sum(1) * share).long() + 1
    return asked & (asked.cumsum(1) == nth.unsqueeze(1))


def _fed_to_a_decoder(place: Place, labels: Tensor) -> Iterator[Trial]:
    """Yield a trial that replaces labels from the first third on; the outputs before them must stay."""
    if labels.dim() != 2 or not bool((labels >= 0).any()) or labels.shape[1] < 3 or labels.is_floating_point():
        return
    n, length = labels.shape
    cut = length // 3
    new = labels.clone()
    counts, others = labels >= 0, successors(labels, labels[labels >= 0])
    for row in range(n):
        later = [i for i in range(cut, length) if bool(counts[row, i])]
        later = later[:-1]  # the last may say which language it is, and begin the decoder's input
        if later:
            new[row, later] = others[row, later]
    if torch.equal(new, labels):
        return
    stays = torch.zeros(n, length, dtype=torch.bool, device="cpu")
    stays[:, : cut + 1] = True
    yield Trial(
        changed={place: new}, parts=Places(stays), what="later labels replaced", whom="the outputs before",
        excuse="labels are fed to a decoder: each of its outputs depends on earlier labels only", is_narrower=True,
    )  # fmt: skip


def _columns(subject: Subject, facts: Facts) -> Iterator[tuple[dict[Place, Tensor], str]]:
    """Yield inputs of floats that contain the label as a column, or as one-hot columns, with these columns replaced."""
    labels = [label for label in facts.drawn_to if len(label) >= _LEAST_ROWS]
    for each in subject.of_model:
        tensor = each.tensor
        if tensor.dim() != 2 or not tensor.is_floating_point():
            continue
        for label in labels:
            if len(label) != len(tensor) or len(label.unique()) < 2:
                continue
            found = _equal(tensor, label)
            if found:
                new = tensor.clone()
                rolled = tensor.roll(1, dims=0)
                new[:, found] = rolled[:, found]
                if not torch.equal(new, tensor):
                    yield {each.place: new}, each.name


def _equal(tensor: Tensor, label: Tensor) -> list[int]:
    if label.is_floating_point():
        return (tensor == label.to(tensor.dtype).unsqueeze(1)).all(0).nonzero()[:, 0].tolist()
    found = (tensor == label.to(tensor.dtype).unsqueeze(1)).all(0).nonzero()[:, 0].tolist()
    if found:
        return found
    columns: list[int] = []
    for value in label.unique():
        same = (tensor == (label == value).to(tensor.dtype).unsqueeze(1)).all(0).nonzero()[:, 0].tolist()
        if not same:
            return []
        columns += same
    return columns
