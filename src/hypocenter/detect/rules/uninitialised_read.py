"""Memory is read that nobody has written.

What it means
    A tensor made by `torch.empty`, `mint.empty` or one of their kin holds whatever lay in that memory before. An
    operator reads a part of it that no operator has written, and the loss or a gradient depends on it. Mostly the
    memory happens to hold zeros or old values, so the loss looks right, and no two runs are the same.

How it is decided
    At audited steps 0, 1, 2, 4, 8, ... and every 1000th the last micro-batch is done again with fresh floating-point
    memory full of NaN. If loss and gradients are finite without that and not with it, the tensor that makes the
    difference is found by halves, and the first operator that makes a NaN of it is named. Nothing is assumed: that is
    what it means to depend on unwritten memory. Where a replay is not like the run, and no NaN comes of memory full of
    them (`nan_to_num`, a comparison), memory is filled with 0 and with 1, each twice: the same number must give the
    same loss and gradients, and so must the other.

What to do
    Make the tensor with `zeros` or `full`, or write all of it before it is read.

When it is wrong
    Memory that is filled by a kernel which leaves out what it must not read, and is then multiplied by zero: 0 x NaN is
    NaN. That is a fault as well, as soon as such memory holds one. Nothing is said where what lay in memory overflows
    the step, and overflows it again when it is done again: that is told as an overflow.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.law_rows import UNWRITTEN
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Remedy


@rule("HC234", "data", severity="error", reads=("optimizer",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire at the step in which it is found."""
    for row in window.of("optimizer"):
        if row.port != UNWRITTEN:
            continue
        made = f" made at {row.names[0]}" if row.names else ""
        yield Finding(
            code="HC234",
            kind="data",
            severity="error",
            title=f"{_short(row.op)} reads memory that nobody has written"
            if row.summary.sum
            else f"what {_short(row.op)} gives is read, and nobody has written it",
            step=row.step,
            rank=window.rank,
            phase="forward",
            site=row.site,
            op=row.op,
            source=row.source,
            cause="uninitialised-read",
            why=(
                f"a tensor of {_short(row.module)}{made}, full of NaN beforehand, makes the result NaN"
                if row.summary.sum
                else f"with ones in a tensor of {_short(row.module)}{made} the result is another than with zeros there",
            ),
            then=("the result depends on what lay in the memory before",),
            confidence="proven",
            remedy=Remedy(
                action="write-first", text="make the tensor with zeros, or write all of it before it is read"
            ),
        )


def _short(op: str) -> str:
    """Return `mul` of `aten.mul.Tensor`, and what has no dots as it is."""
    return op.split(".")[1] if "." in op else op
