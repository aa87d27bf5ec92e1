"""What a sample gives does not depend on how many others there are.

What it means
    A half of the batch is run by itself. Its outputs must stay. If they do not, something counts samples: a sum over
    the batch, a division by its size, a capacity that all samples share. And the loss of the batch should be the mean
    of those of its halves, by samples or by labels that count: otherwise gradients that are accumulated over
    micro-batches are not those of the batch, and a note says so, unless the loss has the number of samples in it.

How it is decided
    Two replays in evaluation mode, of the first half of the samples and of the rest, against one of all. A batch of
    another size is rounded in another way, so this is asked in float32 only, and what counts is the sample that moved
    least. A model that draws random numbers in evaluation is not asked.

What to do
    Look at the named module for what it does over the first dimension. Weigh the losses of micro-batches by their
    labels.

When it is wrong
    Where samples share something on purpose: experts with a capacity.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hypocenter.relations.evaluation import EVALUATED
from hypocenter.relations.facts import Facts
from hypocenter.relations.parts import EachRow
from hypocenter.relations.relation import Note, Trial, relation
from hypocenter.relations.rows import ROUGH, chosen, evaluation_of_rows, rows_of, whole_batch
from hypocenter.relations.subject import Ran, Subject

_SAME = 1e-3  # of a loss


@relation("split", "HC241", order=7, needs=("samples",))
def ask(subject: Subject, facts: Facts) -> Iterator[Trial | Note]:
    """Yield a trial for each half of the batch by itself, then a note if the loss is no mean of theirs."""
    n = whole_batch(subject, facts)
    base = evaluation_of_rows(subject, facts)
    halves = [rows_of(n, rows) for rows in (torch.arange(n // 2, device="cpu"), torch.arange(n // 2, n, device="cpu"))]
    parts: list[Ran] = []
    for rows in halves:
        trial = Trial(
            changed={}, rows=rows, aligns=chosen(rows), parts=EachRow(), what="the other half of the batch left out",
            whom="the outputs", least=ROUGH, then=parts.append, way=EVALUATED, before=base,
        )  # fmt: skip
        yield trial
    if subject.counts_to(n):
        return  # a sum that is divided by it would be so for a half too
    if (text := _apart(base, facts, parts, [rows.kept for rows in halves])) is not None:
        yield Note(text=text)


def _apart(base: Ran, facts: Facts, parts: list[Ran], rows: list[Tensor]) -> str | None:
    """Return the text of a note if the loss is no mean of the losses of the halves; None if it is one."""
    whole = sum(float(v.sum()) for v in base.losses)
    losses = [sum(float(v.sum()) for v in part.losses) for part in parts]
    weights = [[float(len(each)) for each in rows], [1.0, 1.0]]
    for label in facts.labels:
        if label.tensor.dim() and len(label.tensor) % facts.n_rows == 0 and not label.tensor.is_floating_point():
            counts = label.tensor.reshape(facts.n_rows, -1)
            weights.append([float((counts[each.to(counts.device)] >= 0).sum()) for each in rows])
            weights.append([float((counts[each.to(counts.device), 1:] >= 0).sum()) for each in rows])
    means = [sum(w * v for w, v in zip(each, losses, strict=True)) / sum(each) for each in weights if sum(each)]
    if any(abs(mean - whole) <= _SAME * max(abs(whole), *map(abs, losses)) for mean in (*means, sum(losses))):
        return None
    halves_of = " and ".join(f"{v:.5g}" for v in losses)
    return (
        f"the loss of the batch ({whole:.5g}) is no mean of those of its halves ({halves_of}), by samples or labels: "
        "accumulating micro-batches is not the same"
    )
