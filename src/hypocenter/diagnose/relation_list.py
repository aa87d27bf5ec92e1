"""What `hypocenter relations` answers: `hypocenter.relations/1`, from the rows of a recording."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from hypocenter.detect.relation_rows import HOLDS, LOOKED, NOT_ASKED, RELATION, SITE
from hypocenter.nouns import Reading, Source

Status = Literal["healthy", "broken", "not-asked"]
State = Literal["broken", "exception", "holds", "not-asked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A relation, and the answer. Steps and ranks count from 0."""

    relation: str
    state: Annotated[State, Meta(description="exception: it does not hold, by what the module is.")]
    step: int
    rank: int
    why: Annotated[str, Meta(description="What moved by how much, or why it was not asked.")] = ""
    code: Annotated[str | None, Meta(description="Of the rule that tells it.")] = None
    site: Annotated[str | None, Meta(description="The first module that shows it.")] = None
    source: Source | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What must not matter in a run, and whether it does."""

    SPELLS_OUT: ClassVar = False
    schema: Literal["hypocenter.relations/1"] = "hypocenter.relations/1"
    status: Status
    run: str = ""
    relations: tuple[Asked, ...] = ()
    notes: tuple[str, ...] = ()


def answer(run: str, readings: Iterable[tuple[int, Reading]]) -> Answer:
    """Return the last answer to each relation; one that does not hold stays so.

    Args:
        readings: with their ranks, in the order of steps.
    """
    found: dict[str, Asked] = {}
    notes: dict[str, None] = {}
    for rank, row in readings:
        for asked in _asked(rank, row, notes):
            known = found.get(asked.relation)
            if known is None or known.code is None or asked.code is not None:
                is_less = known is not None and known.state == "holds" and asked.state == "not-asked"
                found[asked.relation] = known if is_less and known is not None else asked
    states = {asked.state for asked in found.values()}
    status: Status = "broken" if "broken" in states else "healthy" if states & {"holds", "exception"} else "not-asked"
    order = ("broken", "exception", "holds", "not-asked")
    relations = sorted(found.values(), key=lambda asked: order.index(asked.state))
    return Answer(status=status, run=run, relations=tuple(relations), notes=tuple(notes))


def _asked(rank: int, row: Reading, notes: dict[str, None]) -> Iterable[Asked]:
    if row.port == RELATION and len(row.names) > 3:
        what, whom, exception, name = row.names[:4]
        why = f"{what}: {whom} moved by {row.summary.sum:.2g} of their size" + (f" ({exception})" if exception else "")
        yield Asked(
            relation=name, state="exception" if exception else "broken", step=row.step, rank=rank, why=why, code=row.op,
            site=row.site, source=row.source,
        )  # fmt: skip
    if (row.site, row.port) != (SITE, LOOKED):
        return
    for words in row.names:
        name, is_reason, reason = words.partition(NOT_ASKED)
        if words.endswith(HOLDS):
            yield Asked(relation=words.removesuffix(HOLDS), state="holds", step=row.step, rank=rank)
        elif is_reason:
            yield Asked(relation=name, state="not-asked", step=row.step, rank=rank, why=reason)
        else:
            notes[words] = None
