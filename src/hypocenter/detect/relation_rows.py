"""Rows about what must not matter and does, and about losses: hypocenter.session.observers.relations to HC241 to HC256.

Rows of phase `optimizer`, written at steps at which relations are looked at.

    site <module>, port `relation`     the first module that shows it: "" is the model itself. `op`: the code of the
                                       rule; `module`: class of the module; the number: how far what had to stay moved,
                                       relative to its usual size; `source`: the line before which it happened; `names`:
                                       what was changed, who noticed, what it is by definition ("": no exception), and
                                       the name of the relation; `dtype`: the limit, as text; `call`: how many steps ago
                                       it held, 0 if it was not looked at before
    site <module>, port `loss`         how the loss is computed, a backward of the program's own, or what its loop makes
                                       of samples, is wrong. `op` and
                                       `source` as above; `names`: what, why, and what to do; the number: relative error
                                       of a backward; `call`: how many steps ago it was so first; `module` `note`: some
                                       mean it
    site `relations`, port `looked`    n relations were asked, sum of them held; `names`: which, those that were not
                                       asked with reasons, and notes
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hypocenter.detect.window import Window
from hypocenter.nouns import Confidence, Finding, Remedy

SITE, RELATION, LOSS, LOOKED, NOTE = "relations", "relation", "loss", "looked", "note"
HOLDS, NOT_ASKED = ": holds", ": not asked: "
_FIRST_LOOK = "at no step before was it looked at: it may be so from the start"


def broken(
    window: Window, code: str, *, title: str, cause: str, remedy: Remedy,
    others: Mapping[str, tuple[str, Remedy]] | None = None,
) -> Iterator[Finding]:  # fmt: skip
    """Yield a finding for each row of this rule; a note where it is an exception by definition.

    Args:
        others: title and remedy of relations, by name, that have their own.
    """
    for row in window.of("optimizer"):
        if row.port != RELATION or row.op != code or len(row.names) < 3:
            continue
        what, whom, exception = row.names[:3]
        own_title, own_remedy = (others or {}).get(row.names[-1], (title, remedy))
        size, limit = row.summary.sum, float(row.dtype or 0.0)
        where = f"{row.site or 'the model itself'} ({row.module})" if row.module else "code outside of modules"
        line = f", before {row.source.file}:{row.source.line}" if row.source is not None else ""
        why = (f"{what}: {whom} moved by {size:.2g} of their size", f"it shows first in {where}{line}")
        when = f"it held at step {row.step - row.call}" if row.call else _FIRST_LOOK
        then = (f"an exception by definition: {exception}",) if exception else ()
        yield Finding(
            code=code, kind="data", severity="note" if exception else "warning", title=own_title, step=row.step,
            microbatch=row.microbatch, rank=window.rank, phase="forward", site=row.site, source=row.source,
            cause="unknown" if exception else cause, limit=limit, actual=size,
            why=(*why, *((when,) if row.step else ()), *then),
            confidence="possible" if exception else "proven", remedy=None if exception else own_remedy,
        )  # fmt: skip


def wrong(window: Window, code: str, *, cause: str, confidence: Confidence = "proven") -> Iterator[Finding]:
    """Yield a finding for each row of this rule about a loss or a backward; a note where some mean it."""
    for row in window.of("optimizer"):
        if row.port != LOSS or row.op != code or len(row.names) != 3:
            continue
        title, why, remedy = row.names
        is_note = row.module == NOTE
        yield Finding(
            code=code, kind="data", severity="note" if is_note else "warning", title=title, step=row.step - row.call,
            microbatch=row.microbatch, rank=window.rank, phase="forward", site=row.site, source=row.source,
            cause="unknown" if is_note else cause, why=(why,), confidence="possible" if is_note else confidence,
            remedy=Remedy(action="mend-the-loss", text=remedy),
        )  # fmt: skip
