"""Print the table: `python -m bench.traincheck`."""

from __future__ import annotations

import sys

from bench.traincheck.cases import ELSEWHERE, rows
from hypocenter.nouns import Finding


def main() -> int:
    """A row for each silent error of the study; the exit code is 1 where one that can be found was not."""
    print("| issue | what happens | begins | TrainCheck | Hypocenter |\n| --- | --- | --- | --- | --- |")
    n_missed = 0
    for case, findings in rows():
        n_missed += case.is_found and not findings
        first = min(findings, key=lambda each: each.step, default=None)
        print(f"| {case.issues} | {case.what} | {case.step} | {case.published} | {_told(first)} |", flush=True)
    for issue, why in ELSEWHERE.items():
        print(f"| {issue} | {why} | | | not done |")
    return int(n_missed > 0)


def _told(finding: Finding | None) -> str:
    if finding is None:
        return "nothing"
    return f"step {finding.step}, {finding.param or finding.site}: {finding.title} ({finding.code}, {finding.severity})"


if __name__ == "__main__":
    sys.exit(main())
