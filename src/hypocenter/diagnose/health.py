"""What `hypocenter health` answers: `hypocenter.health/1`, measures of a run by layer, what is out of range first.

A measure is one file in `measures/` whose module docstring is its manual page:

    @measure("dead-units", column="dead", needs="health")
    def take(recorded: Recorded) -> Iterator[Value]: ...
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from hypocenter.catalogue import Catalogue
from hypocenter.diagnose.recorded_health import Recorded
from hypocenter.manual import Manual, page_of

Needs = Literal["", "health", "modules"]
OPTIONS: dict[Needs, str] = {"": "", "health": "run --health every=50", "modules": "run --level modules"}
WHOLE = "(model)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """What a measure says of one place.

    Attributes:
        is_out: out of the range that its page names.
        how_far: the larger, the worse; compared with others of the same measure.
    """

    site: str
    value: float
    says: str
    is_out: bool
    how_far: float
    step: int
    rank: int = 0


Take = Callable[[Recorded], Iterator[Value]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One file of the catalogue."""

    name: str
    column: str  # short name
    needs: tuple[Needs, ...]  # any of these recordings is enough
    order: int
    take: Take

    @property
    def manual(self) -> Manual:
        """The manual page of the measure: the docstring of its file."""
        return page_of(self.take)


CATALOGUE: Catalogue[Measure] = Catalogue("hypocenter.diagnose.measures", "hypocenter.measures")


def measure(name: str, *, column: str, needs: Needs | tuple[Needs, ...], order: int) -> Callable[[Take], Take]:
    """Register a function as a measure.

    Args:
        name: unique, of words with hyphens.
        column: its name over a column of the table.
        needs: what has to be recorded for it; of several, one.
        order: of its column.
    """
    given = (needs,) if isinstance(needs, str) else needs
    return CATALOGUE.adding(name, lambda take: Measure(name=name, column=column, needs=given, order=order, take=take))


def measures(plugins: Iterable[str] = ()) -> list[Measure]:
    """Return all measures, in the order of their columns."""
    CATALOGUE.load(plugins)
    return CATALOGUE.in_order()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One measure at one place. Steps and ranks count from 0."""

    status: Annotated[Literal["in-range", "out-of-range"], Meta(description="Out of range: look at its page.")]
    layer: Annotated[str, Meta(description="The place's path up to its first number.")]
    measure: Annotated[str, Meta(description="What `hypocenter explain` has a page of.")]
    site: Annotated[str, Meta(description="Path of the module, or a parameter's name.")]
    value: float
    says: Annotated[str, Meta(description="The value in words.")]
    step: Annotated[int, Meta(description="The latest that the value is of.")]
    rank: int = 0
    severity: Annotated[Literal["note"], Meta(description="Nothing here is an error by itself.")] = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A measure that nothing can be said of."""

    measure: str
    why: str
    option: Annotated[str, Meta(description="What would record it; empty: nothing would.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The health of a run, worst first."""

    SPELLS_OUT: ClassVar = False
    schema: Literal["hypocenter.health/1"] = "hypocenter.health/1"
    status: Literal["in-range", "out-of-range", "cannot-tell"]
    sentence: str = ""
    run: str = ""
    steps: Annotated[int, Meta(description="Steps that were recorded.")] = 0
    values: Annotated[tuple[Measured, ...], Meta(description="What is out of range first.")] = ()
    missing: Annotated[tuple[Missing, ...], Meta(description="Measures without a value.")] = ()


def answer(run: str, recorded: Recorded, plugins: Iterable[str] = ()) -> Answer:
    """Take all measures of a recording and sort what they say, worst first.

    Args:
        run: its name.
        recorded: what was recorded.
        plugins: files with measures of your own.
    """
    found: list[tuple[Measure, Value]] = []
    missing: list[Missing] = []
    for entry in measures(plugins):
        try:
            values = [value for value in entry.take(recorded) if not math.isnan(value.value)]
        except Exception as error:  # a stranger's file must not take the others with it
            CATALOGUE.report(entry.name, error)
            missing.append(Missing(measure=entry.name, why=f"the measure failed: {type(error).__name__}: {error}"))
            continue
        found += [(entry, value) for value in values]
        if not values:
            missing.append(_missing(entry, recorded))
    ordered = sorted(found, key=lambda pair: (not pair[1].is_out, pair[0].order, -pair[1].how_far))
    out = [value for _, value in found if value.is_out]
    status = "out-of-range" if out else "in-range" if found else "cannot-tell"
    return Answer(
        status=status,
        run=run,
        steps=recorded.n_steps,
        sentence=_sentence(out, found, recorded),
        missing=tuple(missing),
        values=tuple(
            Measured(
                status="out-of-range" if value.is_out else "in-range",
                layer=layer_of(value.site),
                measure=entry.name,
                site=value.site,
                value=value.value,
                says=value.says,
                step=value.step,
                rank=value.rank,
            )
            for entry, value in ordered
        ),
    )


def _missing(entry: Measure, recorded: Recorded) -> Missing:
    has = {"": True, "health": recorded.has_looks, "modules": recorded.has_outputs}
    if any(has[needs] for needs in entry.needs):
        return Missing(measure=entry.name, why="nothing of the kind was seen")
    return Missing(measure=entry.name, why="not recorded", option=OPTIONS[entry.needs[0]])


def _sentence(out: Sequence[Value], found: Sequence[tuple[Measure, Value]], recorded: Recorded) -> str:
    if not found:
        return "nothing of the run's health was recorded"
    of = len({entry.name for entry, _ in found})
    looked = f"{len(found):,} values of {of} measure{'s' if of != 1 else ''} in {recorded.n_steps:,} steps"
    if not out:
        return f"all {looked} are in their range"
    return f"{len(out):,} of {looked} {'is' if len(out) == 1 else 'are'} out of range"


def layer_of(site: str) -> str:
    """Return the part of a path up to its first number; of a path without one its first word."""
    words = site.split(".")
    at = next((i for i, word in enumerate(words) if word.isdigit()), 0)
    return ".".join(words[: at + 1]) or WHOLE
