"""Programs as people write them: Hypocenter sees nothing wrong in them, and they do not notice it.

Losses are printed with all their digits, so that equal output is training equal to the bit.
"""

import functools
import sys
from pathlib import Path

import pytest
from by_day import first_of_each

sys.path.insert(0, str(Path(__file__).parent))

import program

LEVELS: dict[str, tuple[str, ...]] = {"sentinel": (), "modules": ("--audit", "every=1")}
UNDONE = "could not be audited: "  # why is said, and is no word against the program
UNSEEN = {"ensemble_vmap"}  # torch.func gives gradients and nobody is told of an update: that is said
TOLD = "hypocenter: it computes with torch.func: its results are looked at, its updates cannot be seen"
CASES = [(each, "modules") for each in program.ORDINARY] + [(each, "sentinel") for each in program.ORDINARY[::4]]
plain = functools.cache(program.run_plain)


@pytest.mark.parametrize(
    ("script", "level"),
    first_of_each(CASES, lambda case: program.ORDINARY.index(case[0]) // 7 if case[1] == "modules" else case[1]),
    ids=lambda each: each.stem if isinstance(each, Path) else each,
)
def test_silent_and_unnoticed(script: Path, level: str, tmp_path: Path) -> None:
    alone = plain(script)

    watched = program.run_recorded(script, level, tmp_path / "run", *LEVELS[level])

    own = "".join(line for line in watched.stderr.splitlines(keepends=True) if UNDONE not in line).rstrip("\n")
    stderr = TOLD if script.stem in UNSEEN else alone.stderr
    assert alone.exit_code == 0, alone.stderr
    assert (watched.exit_code, watched.stdout, own) == (alone.exit_code, alone.stdout, stderr.rstrip("\n"))
    assert watched.alarms == []
    assert watched.status in (("missing", "cannot-tell") if script.stem in UNSEEN else ("healthy",)), watched.said


def test_there_are_forty() -> None:
    assert len(program.ORDINARY) >= 40
