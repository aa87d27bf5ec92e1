"""An input that is given is read.

What it means
    A model is called with something that no operation in it looks at: a mask that is not handed on, position ids that
    are dropped, a second input that was forgotten. That is a note; a parameter that is not used is told elsewhere.

How it is decided
    In the unchanged forward it is seen which inputs an operation is given. If one is not, it is replaced in a replay,
    and outputs and loss stay as they are to the bit.

What to do
    Hand it on, or do not pass it.

When it is wrong
    Where a program passes all columns of its data to any model.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from hypocenter.relations.facts import CannotTell, Facts
from hypocenter.relations.parts import Whole
from hypocenter.relations.relation import Note, Trial, moved, relation
from hypocenter.relations.subject import Given, Subject
from hypocenter.tap.tape import storage_of


@relation("inputs", order=9)
def ask(subject: Subject, facts: Facts) -> Iterator[Trial | Note]:
    """Replace all inputs that no operation has read; yield a note if neither outputs nor losses change."""
    inputs = [each for each in subject.of_model if each.tensor.numel() > 1]
    unread = [each for each in inputs if storage_of(each.tensor) not in facts.ran.read]
    changed = {each.place: new for each in unread if not torch.equal(new := _other(each), each.tensor)}
    if not unread:
        return
    if not changed:
        raise CannotTell("what nothing reads has the same value everywhere")
    now = subject.run(changed)
    size = moved(Trial(changed={}, parts=Whole(), what="", whom=""), facts, now)
    if size == 0 and all(map(torch.equal, facts.ran.losses, now.losses)):
        names = ", ".join(each.name for each in unread if each.place in changed)
        yield Note(text=f"the model is given {names}, and no operation reads it")


def _other(given: Given) -> torch.Tensor:
    """Return the values of the input in another order: each moved on by one place."""
    return given.tensor.flatten().roll(1).view_as(given.tensor)
