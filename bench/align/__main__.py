"""`python -m bench.align`: align every planted plan, and write what was found to docs/align-cases.md.

`python -m bench.align mindspore` aligns those of a torch program and its MindSpore port.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "align"), str(ROOT / "tests" / "processes")]

from planted_plans import CASES, Planted, plan  # noqa: E402
from started import start  # noqa: E402

from hypocenter.align.alignment import Alignment  # noqa: E402
from hypocenter.align.engine import How, align  # noqa: E402

PAGE = ROOT / "docs" / "align-cases.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A plan and what came of it."""

    case: Planted
    found: Alignment
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether stage and cause are the wanted ones."""
        failed = next((one for one in self.found.stages if one.verdict == "failed"), None)
        if self.case.stage is None or failed is None:
            return failed is None and self.case.stage is None and self.found.status == "aligned"
        told = " ".join([failed.sentence, failed.site or "", *failed.why])
        words = not self.case.words or any(word in told for word in self.case.words)
        return failed.stage == self.case.stage and failed.cause == self.case.cause and words


def main() -> None:
    """Align all; a plan's recordings of the baseline serve the others too."""
    done: list[Done] = []
    with tempfile.TemporaryDirectory(prefix="align-") as name:
        for case in CASES:
            began = time.monotonic()
            found = align(plan(case, Path(name)), How(start=start, recordings=Path(name) / "runs"))
            done.append(Done(case=case, found=found, seconds=time.monotonic() - began))
            print(f"{'right' if done[-1].is_right else 'WRONG'}  {case.name}: {found.sentence}", flush=True)
    PAGE.write_text(page(done), encoding="utf-8")


def page(done: list[Done]) -> str:
    """The page as Markdown."""
    planted = [one for one in done if one.case.stage is not None]
    others = [one for one in done if one.case.stage is None]
    lines = [
        "# Planted plans", "", "Written by `python -m bench.align`; do not edit.", "",
        "A GPT of two blocks, 32 wide, trained in float32 on the text of Python's manual; the candidate is the same",
        "program with one difference. What must be found stands beside it in tests/align/planted_plans.py.",
        "", f"- of {len(planted)} planted plans {sum(one.is_right for one in planted)} stop at the right stage with the"
        " right cause", f"- of {len(others)} right plans {sum(one.is_right for one in others)} pass every stage",
        f"- all of it took {sum(one.seconds for one in done):.0f} s, beside other work", "",
        "| planted | stage | cause | found |", "| --- | --- | --- | --- |", *map(_row, done), "",
    ]  # fmt: skip
    return "\n".join(lines)


def _row(done: Done) -> str:
    failed = next((one for one in done.found.stages if one.verdict == "failed"), None)
    stage = f"{failed.stage} {failed.name}" if failed is not None else "none"
    mark = "" if done.is_right else " **wrong**"
    text = (failed.sentence if failed is not None else done.found.sentence).replace("|", "\\|")
    return f"| {done.case.name} | {stage}{mark} | {failed.cause if failed is not None else ''} | {text} |"


if __name__ == "__main__":
    if sys.argv[1:] == ["mindspore"]:
        from bench.align import mindspore

        mindspore.main()
    else:
        main()
