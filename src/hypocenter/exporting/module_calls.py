"""Calls of modules and operators, beside and inside each other by the order of what was seen of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.record.reader import RecordedRun

_PHASES = ("forward", "loss", "backward")
_COLUMNS = ("step", "microbatch", "phase", "site", "order", "call", "module", "op", "recompute")

Value = str | int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a module or operator; `first` and `last` are places in the step's order."""

    name: str
    first: int
    last: int
    about: dict[str, Value]


def calls_by_step(recording: RecordedRun, rank: int) -> Iterator[tuple[int, list[Call]]]:
    """Yield each step that has calls, with them: outer calls before inner ones, none across another's end."""
    rows: dict[int, list[dict[str, Any]]] = {}
    for _, table in recording.scan(_is_call, columns=_COLUMNS, ranks=[rank]):
        for batch in table.to_batches(8192):
            for row in batch.to_pylist():
                rows.setdefault(row["step"], []).append(row)
    yield from ((step, _nested(_calls(seen))) for step, seen in sorted(rows.items()))


def _is_call(batch: pa.RecordBatch) -> pa.Array:
    return pc.is_in(batch["phase"], value_set=pa.array(_PHASES))  # pyright: ignore[reportAttributeAccessIssue]


def _calls(rows: list[dict[str, Any]]) -> list[Call]:
    found: dict[tuple[object, ...], Call] = {}
    for row in rows:
        alone = row["order"] if row["op"] else None  # an operator is seen once
        key = row["microbatch"], row["phase"], row["site"], row["call"], row["recompute"], alone
        known = found.get(key)
        if known is None:
            name = row["op"] or row["site"] or "the model"
            about: dict[str, Value] = {
                k: row[k] for k in ("phase", "microbatch", "site", "call", "module") if row[k] != ""
            }
            about |= {"again": "recomputed"} if row["recompute"] else {}
            found[key] = Call(name=name, first=row["order"], last=row["order"], about=about)
        else:
            found[key] = replace(known, first=min(known.first, row["order"]), last=max(known.last, row["order"]))
    return sorted(found.values(), key=lambda call: (call.first, -call.last))


def _nested(calls: list[Call]) -> list[Call]:
    """Let a call that would end after the one around it end with that: backward is not seen in such an order."""
    open_until: list[int] = []
    nested: list[Call] = []
    for call in calls:
        while open_until and open_until[-1] < call.first:
            open_until.pop()
        last = min([call.last, *open_until[-1:]])
        open_until.append(last)
        nested.append(replace(call, last=last))
    return nested
