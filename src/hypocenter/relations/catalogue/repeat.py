"""A batch that comes twice in one gives the same twice.

What it means
    Every sample is there twice. Its outputs must stay. If they do not, something counts samples.

How it is decided
    One replay in evaluation mode with the batch behind itself, in float32. It takes more memory than the step, so
    it is asked only where it is named: `check_relations(model, batch, only=("samples", "repeat"))`.

What to do
    Look at the named module for what it does over the first dimension.

When it is wrong
    Where samples share something on purpose: experts with a capacity.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from hypocenter.relations.evaluation import EVALUATED
from hypocenter.relations.facts import Facts
from hypocenter.relations.parts import EachRow
from hypocenter.relations.relation import Trial, relation
from hypocenter.relations.rows import ROUGH, chosen, evaluation_of_rows, rows_of, whole_batch
from hypocenter.relations.subject import Subject


@relation("repeat", "HC241", order=8, needs=("samples",), is_on_request=True)
def ask(subject: Subject, facts: Facts) -> Iterator[Trial]:
    """Yield a trial that gives the batch twice in one; each output must be the same as for the batch alone."""
    n = whole_batch(subject, facts)
    rows = rows_of(n, torch.arange(n, device="cpu").repeat(2))
    yield Trial(
        changed={}, rows=rows, aligns=chosen(rows), parts=EachRow(), what="the batch given twice in one",
        whom="the outputs", least=ROUGH, way=EVALUATED, before=evaluation_of_rows(subject, facts),
    )  # fmt: skip
