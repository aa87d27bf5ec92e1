"""SARIF 2.1.0, which code-scanning tools show beside the source line of the module that is to blame."""

from __future__ import annotations

from hypocenter.compare.comparison import Comparison
from hypocenter.compare.sentences import place
from hypocenter.report.ci import sarif, sarif_result

suffix = ".sarif"


def render(found: Comparison) -> str:
    """Return one result if the runs differ; what cannot be told is an unsuccessful invocation, not a clean one."""
    results: list[dict[str, object]] = []
    first = found.first
    if found.status == "diverged" and first is not None:
        lines = [found.sentence, *(f"why: {reason}" for reason in found.why)]
        lines += [f"cause: {found.cause} ({found.confidence})"] if found.cause is not None else []
        lines += [f"fix: {found.fit.fix}"] if found.fit is not None and found.fit.fix else []
        file, line = (first.source.file, first.source.line) if first.source is not None else ("", 1)
        results.append(sarif_result("diverged", 0, "error", "\n".join(lines), place(first.site), file, line))
    return sarif(["diverged"], results, found.sentence if found.status == "cannot-tell" else None)
