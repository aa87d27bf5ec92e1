"""A hyper-parameter is rounded to 1 or to 0.

What it means
    A factor or a constant of the optimizer meets a format that cannot hold it: 0.999 is 1 in bfloat16 (its numbers
    below 1 are 1/256 apart), so that an average with this factor forgets nothing; 1e-8 is 0 in float16, so that
    eps no longer protects a division by zero.

How it is decided
    A tensor among the hyper-parameters is in a low format and its factor is exactly 1, or its eps exactly 0: a
    warning. A plain number that becomes 1 or 0 in the format of the optimizer's state is a note: it says what may
    happen. What did happen is measured by HC221 and HC223, and a parameter that turns NaN is HC103.

What to do
    Keep hyper-parameters as Python numbers or float32 tensors; choose eps at least 1e-4 with float16 state; keep
    state in float32.

When it is wrong
    As a note, often harmless: large averages lose their last bits only, and a gradient that is never exactly 0
    needs no eps.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.update_rows import HYPER, HYPER_ROUNDED
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Reading, Remedy


@rule("HC225", "config", severity="warning", reads=("optimizer",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire for each hyper-parameter that has become 1 or 0."""
    given = {(r.site, r.dtype): r for r in window.by_phase["optimizer"] if r.port == HYPER}
    for row in window.by_phase["optimizer"]:
        if row.port != HYPER_ROUNDED or (row.site, row.dtype) not in given:
            continue
        value, optimizer, holder = given[row.site, row.dtype].summary.sum, *row.module.partition(" ")[::2]
        is_eps, is_tensor = row.site.endswith(".eps"), holder == "tensor"
        became = row.summary.sum
        if became != (0.0 if is_eps else 1.0) or (value == became and not is_tensor):
            continue
        if is_eps and is_tensor and optimizer == "SGD":
            continue
        yield _found(window, row, value, optimizer, is_tensor=is_tensor)


def _found(window: Window, row: Reading, value: float, optimizer: str, *, is_tensor: bool) -> Finding:
    is_eps = row.site.endswith(".eps")
    name = row.site.rpartition(".")[2]
    where = f"a {row.dtype} tensor" if is_tensor else f"state in {row.dtype}"
    title = f"{name} of {optimizer} is {row.summary.sum:g} in {where}"
    return Finding(
        code="HC225",
        kind="config",
        severity="warning" if is_tensor else "note",
        title=title if is_tensor else f"{title}, not {value:g}",
        step=window.step,
        rank=window.rank,
        phase="optimizer",
        site=row.site,
        port=HYPER,
        cause="optimizer-eps-underflow" if is_eps else "update-rounded-away",
        limit=row.summary.sum,
        actual=value,
        why=(
            "a gradient of exactly 0 then gives 0 / 0"
            if is_eps
            else "an average multiplied by it forgets nothing: it grows with larger values and never shrinks",
        ),
        confidence="proven" if is_tensor else "possible",
        remedy=Remedy(action="eps", text="eps of 1e-4 or more, or state in float32")
        if is_eps
        else Remedy(action="fp32-state", text="keep it as a Python number, and the state in float32"),
    )
