"""A micro-batch in evaluation mode, once for all relations that ask for it."""

from __future__ import annotations

from dataclasses import dataclass

from hypocenter.relations.facts import Facts
from hypocenter.relations.left_on import Dropping
from hypocenter.relations.parts import Whole
from hypocenter.relations.relation import Trial, moved
from hypocenter.relations.subject import Ran, Subject, Way

EVALUATED, AGAIN = Way(is_evaluated=True), Way(is_evaluated=True, seed=0xA6A1)
SAME = Trial(changed={}, parts=Whole(), what="", whom="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A forward in evaluation mode, and how far it depends on random numbers.

    Attributes:
        ran: with the random numbers of the run.
        away: how far it is from another time with other random numbers, relative; None: cannot tell.
        has_drawn: it draws random numbers.
        dropped: calls of functions by which it would have dropped something, was that not held.
    """

    ran: Ran
    away: float | None
    has_drawn: bool
    dropped: list[Dropping]


def evaluation(subject: Subject, facts: Facts) -> Evaluation:
    """Run the forward in evaluation mode; a second time where it draws random numbers, to measure their effect."""
    if facts.evaluation is None:
        ran, away = subject.run(way=AGAIN, keeps=bool(facts.kept)), 0.0  # who looks for a module will look here, too
        dropped = subject.held.dropped
        has_drawn = ran.has_drawn or subject.has_own_generators
        if facts.kept and not has_drawn:
            facts.kept[EVALUATED] = ran
        if has_drawn:
            again, ran = ran, facts.ran if facts.ran.is_evaluated else subject.run(way=EVALUATED)
            away = moved(SAME, facts, again, ran)
        facts.evaluation = Evaluation(ran=ran, away=away, has_drawn=has_drawn, dropped=dropped)
    return facts.evaluation
