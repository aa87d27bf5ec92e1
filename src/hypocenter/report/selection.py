"""Which readings a person asked to see: by site, step and rank."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.errors import UnknownNameError
from hypocenter.report.wording import nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is asked for; when nothing is given, every value of the program."""

    site: str = ""  # shell glob, or a name that is found anywhere in a site's name
    step: int | None = None
    rank: int | None = None
    is_whole: bool = (
        False  # also digests, and what Hypocenter measured for itself; a site that is named is given anyhow
    )


def select(table: pa.Table, wanted: Selection) -> pa.Table:
    """Return the rows of `table` that fit.

    Raises:
        UnknownNameError: the site, step or rank does not occur; names what does.
    """
    for name, value in (("rank", wanted.rank), ("step", wanted.step)):
        if value is not None:
            table = _equal(table, name, value)
    return _of_site(table, wanted.site) if wanted.site else table


def _equal(table: pa.Table, name: str, value: int) -> pa.Table:
    chosen = table.filter(pc.equal(table[name], value))
    if chosen.num_rows == 0 and table.num_rows:
        low, high = pc.min(table[name]).as_py(), pc.max(table[name]).as_py()
        raise UnknownNameError(
            f"nothing was recorded at {name} {value}",
            where=f"--{name}",
            why=f"the recording has {name}s {low} to {high}",
            fix=f"choose a {name} between them, or leave --{name} out to see all",
        )
    return chosen


def matching_sites(names: Collection[str], pattern: str) -> list[str]:
    """Return the sites that match a glob, or whose name contains the text.

    Raises:
        UnknownNameError: there is none; names what is near.
    """
    found = [name for name in names if fnmatch.fnmatchcase(name, pattern) or name == pattern]
    found = found or [name for name in names if pattern in name]
    if not found:
        raise UnknownNameError(
            f"no site matches {pattern!r}",
            where="--site",
            why=f"{len(names)} sites were recorded here",
            fix=nearest(pattern, list(names)).replace(
                "see them all with `hypocenter list`", "leave --site out to see them all"
            ),
        )
    return found


def _of_site(table: pa.Table, pattern: str) -> pa.Table:
    found = matching_sites([str(name) for name in pc.unique(table["site"]).to_pylist()], pattern)
    return table.filter(pc.is_in(table["site"], pa.array(found, pa.string())))
