"""A row for an operator that reads memory which nobody has written."""

from __future__ import annotations

import math

from hypocenter.detect import law_rows as law
from hypocenter.nouns import Reading, replace
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.tap.source import source_of
from hypocenter.tap.unwritten import UnwrittenRead


def unwritten_row(read: UnwrittenRead, step: int, order: int, fill: float = math.nan) -> Reading:
    """Return the row that HC234 reads: see hypocenter.detect.law_rows.

    Args:
        fill: what memory was full of.
    """
    code, made = read.place.code, read.made_at
    source = source_of(code.co_filename, read.place.line, code.co_name) if code is not None else None
    where = f"{made.code.co_filename}:{made.line}" if made.code is not None else ""
    row = number_row(
        read.place.site or law.SITE, law.UNWRITTEN, step, order, float(math.isnan(fill)), module=read.maker
    )
    return replace(row, op=read.op, source=source, names=(where,) if where else ())
