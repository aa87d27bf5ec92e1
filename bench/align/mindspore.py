"""`python -m bench.align mindspore`: align the torch GPT with its MindSpore port, right and with ten planted
differences, and write what was found to docs/align-mindspore.md. MINDSPORE_PYTHON names the other interpreter.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "align"), str(ROOT / "tests" / "processes")]

from planted_port import CASES, Planted, failed_stage, is_cause_right, is_site_right, plan  # noqa: E402
from site_pairs import Sites, forward_sites  # noqa: E402
from started import start  # noqa: E402
from two_frameworks import prepare  # noqa: E402

from hypocenter.align.alignment import Alignment  # noqa: E402
from hypocenter.align.engine import How, align  # noqa: E402

PAGE = ROOT / "docs" / "align-mindspore.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A plan and what came of it."""

    case: Planted
    found: Alignment
    seconds: float


def main() -> None:
    """Align all; the baseline's recordings serve every plan."""
    done: list[Done] = []
    with tempfile.TemporaryDirectory(prefix="align-mindspore-") as name:
        pair = prepare(Path(name))
        for case in CASES:
            began = time.monotonic()
            found = align(plan(case, pair, Path(name)), How(start=start, recordings=Path(name) / "runs"))
            done.append(Done(case=case, found=found, seconds=time.monotonic() - began))
            marks = ["right" if right(case, found) else "WRONG" for right in (is_site_right, is_cause_right)]
            print(f"site {marks[0]}, cause {marks[1]}  {case.name}: {found.sentence}", flush=True)
        sites = forward_sites(Path(name), done[0].found)
    PAGE.write_text(page(done, sites), encoding="utf-8")


def page(done: list[Done], sites: Sites) -> str:
    """The page as Markdown."""
    planted = [one for one in done if one.case.stage is not None]
    n_sites = sum(is_site_right(one.case, one.found) for one in planted)
    n_causes = sum(is_cause_right(one.case, one.found) for one in planted)
    lines = [
        "# From PyTorch to MindSpore", "", "Written by `python -m bench.align mindspore`; do not edit.", "",
        "A GPT of two blocks, 32 wide, in float32: `tests/align/programs/gpt_torch.py` as nanoGPT has it, and",
        "`gpt_mindspore.py`, the same in MindSpore (PyNative, on the CPU) as MindFormers names it: queries, keys and",
        "values apart, the activation inside the first linear, gamma and beta. Both are ordinary programs. Torch's",
        "first weights were carried across by `hypocenter weights convert`; nobody wrote a map of names.", "",
        f"- forward sites paired: {sites.n_baseline} of {sites.of_baseline} of the baseline, {sites.n_candidate} of "
        f"{sites.of_candidate} of the port", *_right(done[0].found), "",
        f"Then {len(planted)} differences were planted in the port, one at a time. What must be found stands beside",
        f"them in `tests/align/planted_port.py`. The first site was right in {n_sites} of {len(planted)}, the cause in "
        f"{n_causes}.", f"All of it took {sum(one.seconds for one in done):.0f} s.", "",
        "| planted | stage | first site | cause | found |", "| --- | --- | --- | --- | --- |", *map(_row, planted), "",
    ]  # fmt: skip
    return "\n".join(lines)


def _right(found: Alignment) -> Iterable[str]:
    yield f"- the right port: {found.sentence}"
    for stage in found.stages:
        if stage.verdict not in ("skipped", "not-run"):
            yield f"    - {stage.stage} {stage.name}: {stage.verdict}: {stage.sentence}"


def _row(done: Done) -> str:
    failed = failed_stage(done.found)
    if failed is None:
        return f"| {done.case.name} | none **wrong** | | | {done.found.sentence} |"
    marks = ["" if right(done.case, done.found) else " **wrong**" for right in (is_site_right, is_cause_right)]
    site = failed.site or "the batch"
    text = failed.sentence.replace("|", "\\|")
    return f"| {done.case.name} | {failed.stage} {failed.name} | {site}{marks[0]} | {failed.cause}{marks[1]} | {text} |"


if __name__ == "__main__":
    main()
