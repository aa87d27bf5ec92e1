"""Rows of phase `optimizer` as hypocenter.detect.update_rows describes them."""

from __future__ import annotations

from dataclasses import replace

from hypocenter.detect.update_rows import count_summary
from hypocenter.nouns import Reading, Summary
from hypocenter.session.check import scalar_reading


def count_row(
    site: str, port: str, step: int, order: int, counts: tuple[int, int], *, dtype: str = "",
    shape: tuple[int, ...] = (), module: str = "", call: int = 0,
) -> Reading:  # fmt: skip
    """Return a row that counts: of counts[0] elements a claim holds for counts[1]."""
    summary: Summary = count_summary(*counts)
    return Reading(
        step=step, microbatch=0, phase="optimizer", site=site, port=port, order=order, call=call, dtype=dtype,
        shape=shape, summary=summary, module=module,
    )  # fmt: skip


def number_row(
    site: str, port: str, step: int, order: int, value: float, *, dtype: str = "", module: str = "", call: int = 0
) -> Reading:
    """Return a row of one number."""
    row = scalar_reading(site, "optimizer", value, step, order)
    return replace(row, port=port, dtype=dtype, module=module, call=call)
