"""A micro-batch in evaluation mode, once for all relations that ask for it."""

from __future__ import annotations

from dataclasses import dataclass

from hypocenter.relations.facts import Facts
from hypocenter.relations.parts import Whole
from hypocenter.relations.relation import Trial, moved
from hypocenter.relations.subject import Ran, Subject, Way

EVALUATED, AGAIN = Way(is_evaluated=True), Way(is_evaluated=True, seed=0xA6A1)
SAME = Trial(changed={}, parts=Whole(), what="", whom="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What came of it.

    Attributes:
        ran: with the random numbers of the run.
        away: how far it is from another time with other random numbers, relative; None: cannot tell.
        has_drawn: it draws random numbers.
    """

    ran: Ran
    away: float | None
    has_drawn: bool


def evaluation(subject: Subject, facts: Facts) -> Evaluation:
    """Two forwards, the first time; one where the run evaluates."""
    if facts.evaluation is None:
        once = facts.ran if facts.ran.is_evaluated else subject.run(way=EVALUATED)
        again = subject.run(way=AGAIN)
        has_drawn = again.has_drawn or subject.has_own_generators
        facts.evaluation = Evaluation(ran=once, away=moved(SAME, facts, again, once), has_drawn=has_drawn)
    return facts.evaluation
