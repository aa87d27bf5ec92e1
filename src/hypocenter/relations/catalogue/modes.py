"""What training and evaluation have in common, and whether evaluation repeats itself.

What it means
    In evaluation a model gives the same each time, and beside dropout and BatchNorm what it gives in training. What is
    otherwise is a note: a branch that is taken in training only, stochastic depth, noise, random masks in evaluation.
    An evaluation that draws random numbers is another one each time, and a score with it.

How it is decided
    A replay in evaluation mode; a second one with other random numbers if it draws any. Dropout is off in training,
    too, and BatchNorm takes its averages. The first module that differs is named.

What to do
    Look whether the named module means to do so.

When it is wrong
    It is a note of what is so: noise may be wanted.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.relations.evaluation import AGAIN, EVALUATED, SAME, evaluation
from hypocenter.relations.facts import Facts
from hypocenter.relations.relation import Note, moved, relation
from hypocenter.relations.subject import AS_IT_WAS, Subject


@relation("modes", order=6)
def ask(subject: Subject, facts: Facts) -> Iterator[Note]:
    """Compare evaluation with itself under other random numbers, then with training; yield a note if they differ."""
    found = evaluation(subject, facts)
    if found.away is not None and found.away > facts.tolerance:
        text = f"evaluation draws random numbers: its outputs are another time {found.away:.2g} of their size away"
        yield Note(text=text, between=(EVALUATED, AGAIN))
        return
    apart = moved(SAME, facts, found.ran)
    if apart is not None and apart > facts.tolerance:
        text = f"beside dropout and BatchNorm, training computes something else than evaluation ({apart:.2g} of it)"
        yield Note(text=text, between=(AS_IT_WAS, EVALUATED))
