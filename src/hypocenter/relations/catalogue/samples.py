"""A sample of the batch does not depend on the others.

What it means
    Some samples of the micro-batch are replaced by their neighbours. The outputs for the others must stay. If they do
    not, something mixes samples: a view or transpose over the wrong dimensions, statistics or a softmax over the axis
    of the batch, a state that one sample leaves for the next.

How it is decided
    Two replays: every second row takes the values of its neighbour, once the even and once the odd ones. Shapes and
    random numbers are the same, so what is independent stays to the bit. The first module whose output for an
    untouched row moves is named.

What to do
    Look at the named module: at its dimensions, its views and its normalisation.

When it is wrong
    Where samples are meant to be compared: contrastive losses inside the model, graphs. What is recognised as such is a
    note, also what a module keeps of its batch in a buffer (a range for quantization), or in an attribute without rows
    on whose old value its outputs depend, and experts with a capacity: all rows that move were given to fewer of the
    modules that get some rows only, and to no other.
    BatchNorm in training is held at its averages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from hypocenter.relations.facts import CannotTell, Facts
from hypocenter.relations.parts import Rows, RowsAnywhere
from hypocenter.relations.relation import Trial, on_all_ranks, relation
from hypocenter.relations.subject import Place, Subject


@relation("samples", "HC241", order=1)
def ask(subject: Subject, facts: Facts) -> Iterator[Trial]:
    """Yield trials that replace the even rows, then the odd ones; the outputs of the other rows must stay."""
    n = facts.n_rows
    if n == 0:
        raise CannotTell("which dimension is the batch is not known")
    if n < 2:
        raise CannotTell("there is one sample only")
    if facts.relates_rows:
        raise CannotTell(f"{facts.relates_rows} may say which rows belong together, or hold them in a row")
    for first in (0, 1):
        stays = torch.arange(n, device="cpu") % 2 != first
        taken = _neighbours(n, first)
        changed = _replaced(subject, taken, dim=0)
        if not changed:
            raise CannotTell("all samples are the same")
        told = Trial(
            changed=changed, parts=Rows(stays), what="other samples replaced", whom="the samples that were not touched"
        )
        reordered = replace(told, parts=RowsAnywhere(stays), excuse="samples change places inside the model")
        second = () if facts.is_certain else _along_second(subject, facts)
        yield replace(told, otherwise=(reordered, *second, *on_all_ranks(told, taken, subject)))


def _along_second(subject: Subject, facts: Facts) -> Iterator[Trial]:
    """Yield the trials that hold if the second dimension, not the first, is the batch."""
    if not facts.may_be_second:
        return
    n = next(e.tensor.shape[1] for e in subject.of_model if e.tensor.dim() > 1)
    for first in (0, 1) if n > 1 else ():
        changed = _replaced(subject, _neighbours(n, first), dim=1)
        if changed:
            stays = torch.arange(n, device="cpu") % 2 != first
            yield Trial(changed=changed, parts=Rows(stays), what="its second dimension replaced", whom="the others")


def _neighbours(n: int, first: int) -> Tensor:
    """Return of each row which one it takes: every second one its neighbour, the others themselves."""
    rows = torch.arange(n, device="cpu")
    rows[first::2] += 1 if first == 0 else -1
    if n % 2 and first == 0:
        rows[-1] = n - 2
    return rows


def _replaced(subject: Subject, rows: Tensor, dim: int) -> dict[Place, Tensor]:
    """Return inputs whose rows are those of others; empty if nothing changes by that."""
    changed: dict[Place, Tensor] = {}
    is_other = False
    for each in subject.of_model:
        tensor = each.tensor
        if tensor.dim() > dim and tensor.shape[dim] == len(rows):
            new = tensor.index_select(dim, rows.to(tensor.device))
            changed[each.place] = new
            is_other = is_other or not torch.equal(new, tensor)
    return changed if is_other else {}
