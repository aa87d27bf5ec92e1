"""A probed value is not finite.

What it means
    A value that the program marked with `hypocenter.probe(x, "label")` held NaN or infinity.

How it is decided
    A reading of port `probe` is not finite: NaN or +inf is a warning, -inf alone, the usual mask, a note. A
    site that was not finite before is not reported again.

What to do
    Probe the inputs of the lines before it, or record at level `ops` to get each operation.

When it is wrong
    When infinity is what the marked value should hold.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding


@rule("HC107", "nonfinite", severity="warning", reads=("nonfinite",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire on each probe that is not finite for the first time."""
    seen: set[str] = set()
    for row in window.of("forward", "loss"):
        s = row.summary
        if not row.port.startswith("probe") or not s.n_nonfinite or row.site in seen:
            continue
        seen.add(row.site)
        if any(r.summary.n_nonfinite for r in window.history.rows(row.site, row.port)):
            continue
        chips = [f"{k} ×{n:,}" for k, n in (("NaN", s.n_nan), ("+inf", s.n_posinf), ("-inf", s.n_neginf)) if n]
        yield Finding(
            code="HC107",
            kind="nonfinite",
            severity="warning" if s.n_nan or s.n_posinf else "note",
            title=f"the probed value holds {', '.join(chips)}",
            step=window.step,
            microbatch=row.microbatch,
            rank=window.rank,
            phase=row.phase,
            site=row.site,
            port=row.port,
            chips=tuple(chips),
        )
