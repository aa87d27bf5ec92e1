"""`python -m bench.align.story FOLDER`: the guide's case as docs/align.md tells it, with its pictures.

Three alignments, each after a flag of the candidate was changed; texts and pages go to FOLDER, pictures to docs/.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "align"), str(ROOT / "tests" / "processes")]

from started import start  # noqa: E402

from hypocenter.align.engine import How, align  # noqa: E402
from hypocenter.align.plan import read_plan  # noqa: E402
from hypocenter.report.alignment import html, terminal  # noqa: E402

PROGRAMS = ROOT / "tests" / "align" / "programs"
FLAGS = ("", "--embedding bfloat16", "--embedding bfloat16 --decay all")
PLAN = """
[baseline]
command = "python reference_gpt.py --steps 1000"
config = "configs/gpt.json"
[candidate]
command = "python ported_gpt.py --steps 1000 {flags}"
config = "configs/gpt.json"
[stages]
frozen_steps = {frozen}
long_steps = {long}
"""


def main(folder: Path, frozen: int = 60, long: int = 200) -> None:
    """Go through the story in `folder`, a copy of the programs."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in [*PROGRAMS.glob("*.py"), *PROGRAMS.glob("configs/*")]:
        target = folder / path.relative_to(PROGRAMS)
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(path.read_bytes())
    for number, flags in enumerate(FLAGS, 1):
        plan = folder / "port.toml"
        plan.write_text(PLAN.format(flags=flags, frozen=frozen, long=long))
        found = align(read_plan(plan), How(start=start, tell=lambda text: print(text, flush=True)))
        (folder / f"{number}.txt").write_text(terminal.render(found))
        (folder / f"{number}.html").write_text(html.render(found))
        if number == 1:
            (ROOT / "docs" / "align-local-norms.svg").write_text(html.norms_svg(found.stages[3].figures["local_norms"]))
    for stage, name in ((5, "align-frozen.svg"), (7, "align-long-run.svg")):
        drawn = html.curve_svg(found.stages[stage].figures["curves"][0])
        if drawn is not None:
            (ROOT / "docs" / name).write_text(drawn)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
