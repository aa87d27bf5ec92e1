"""Real loops and trainers with an overflow planted at a known step and micro-batch: the numbers come out right."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gallery"))

import casebook

PROGRAMS = casebook.faults(Path(__file__).parent)
LEVELS = ("sentinel", "modules")


def by_id(case: casebook.Case) -> str:
    return case.id


@pytest.mark.slow
@pytest.mark.parametrize("case", PROGRAMS, ids=by_id)
def test_the_fault_is_real(case: casebook.Case) -> None:
    """Plain torch: finite before the planted step, not finite at it; the healthy twin stays finite."""
    losses = casebook.printed(casebook.run_plain(case).stdout, "loss")
    healthy = casebook.printed(casebook.run_plain(case, "--healthy").stdout, "loss")

    assert all(casebook.is_finite(losses[step]) for step in range(case.answer["step"]))
    assert not casebook.is_finite(losses[case.answer["step"]])
    assert len(healthy) > case.answer["step"]
    assert all(casebook.is_finite(loss) for loss in healthy.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "level"),
    [pytest.param(case, LEVELS[i % 2], id=f"{case.id}-{LEVELS[i % 2]}") for i, case in enumerate(PROGRAMS)],
)
def test_step_and_microbatch_are_right(case: casebook.Case, level: str, tmp_path: Path) -> None:
    outcome = casebook.run(case, tmp_path / "run", level=level)

    assert casebook.mismatches(case, outcome) == [], (outcome.first, outcome.stderr)
    assert outcome.exit_code == 0, outcome.stderr


@pytest.mark.slow
@pytest.mark.parametrize("case", PROGRAMS, ids=by_id)
def test_twin_is_silent(case: casebook.Case, tmp_path: Path) -> None:
    outcome = casebook.run(case, tmp_path / "run", "--healthy")

    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.alarms == []
    assert outcome.status == "healthy", outcome.stderr
