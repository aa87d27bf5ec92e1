"""Settings of paired modules that differ although all values agree: what is noise here may be more elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hypocenter.compare.clues import say
from hypocenter.compare.comparison import Pair
from hypocenter.record.facts_file import Facts, ModuleFacts

_MOST_NAMED = 3  # of the modules; the others are counted


def settings_apart(pairs: Iterable[Pair], facts: tuple[Facts | None, Facts | None]) -> tuple[str, ...]:
    """A note when modules of the same name differ in class, in a function or in an attribute; else nothing.

    Modules that go by other names are of another program: their classes and attributes differ as a matter of course.
    """
    mine, other = ({one.path: one for one in side.modules} if side is not None else {} for side in facts)
    sites = dict.fromkeys(pair.baseline[0].site for pair in pairs if pair.by == "exact" and pair.baseline[0].site)
    lines = [line for site in sites if site in mine and site in other for line in _apart(mine[site], other[site])]
    if not lines:
        return ()
    more = f"; and {len(lines) - _MOST_NAMED} more" if len(lines) > _MOST_NAMED else ""
    return (f"within noise here, but set in another way: {'; '.join(lines[:_MOST_NAMED])}{more}",)


def _apart(a: ModuleFacts, b: ModuleFacts) -> Iterator[str]:
    if a.kind != b.kind:
        yield f"{a.path} is {a.kind} in the baseline and {b.kind} in the candidate"
        return
    for mine, other in ((a.functions, b.functions), (a.attributes, b.attributes)):
        for name in sorted(mine.keys() & other.keys()):
            if mine[name] != other[name]:
                yield (
                    f"{name} of {a.path} is {say(mine[name])} in the baseline and {say(other[name])} in the candidate"
                )
