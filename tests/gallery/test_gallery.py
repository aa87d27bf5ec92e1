"""Every planted fault is named right, every healthy twin and near miss stays silent.

Given a standalone training script, when it runs under `hypocenter run`, then the first finding is the planted one.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import casebook
from by_day import first_of_each
from casebook import is_finite, printed

pytestmark = pytest.mark.long
HERE = Path(__file__).parent
FAULTS = casebook.faults(HERE)
NEAR_MISSES = casebook.near_misses(HERE)
LEVELS = {"modules": "every=1", "ops": "never"}  # and the steps that are audited; `sentinel` is a part of each


def family(case: casebook.Case) -> str:
    return case.id[0]


def decade(case: casebook.Case) -> str:
    return case.id[:2]


def by_id(case: casebook.Case) -> str:
    return case.id


@pytest.mark.parametrize("case", first_of_each(FAULTS, family), ids=by_id)
def test_the_fault_is_real(case: casebook.Case) -> None:
    """Plain torch: healthy and learning before the planted step, wrong at it in the way that the answer says."""
    done = casebook.run_plain(case)

    losses, grads, step = printed(done.stdout, "loss"), printed(done.stdout, "grad"), case.answer["step"]
    assert all(is_finite(losses[s]) and is_finite(grads[s]) for s in range(step)), done.stdout
    if step:  # what is built in wrongly is there from the first step on
        assert losses[step - 1] < losses[0]
    felt = case.answer["felt"]
    if felt == "loss":
        assert not is_finite(losses[step])
    elif felt == "grad":
        assert is_finite(losses[step])
        assert not is_finite(grads[step])
    elif felt == "zero":
        zeros = printed(done.stdout, "zero")
        assert zeros[step] > zeros[step - 1] == 0
    elif felt == "param":
        bad = printed(done.stdout, "bad-params")
        assert bad[step] > 0 == bad[step - 1]
        assert is_finite(grads[step])
    else:
        assert is_finite(losses[step])
        assert is_finite(grads[step])


@pytest.mark.parametrize("case", FAULTS, ids=by_id)
def test_fault_is_named(case: casebook.Case, tmp_path: Path) -> None:
    outcome = casebook.run(case, tmp_path / "run", is_started=case is FAULTS[0])

    is_fact = case.answer.get("severity") == ["note"]  # a fact that nobody is accused of
    assert outcome.status == ("healthy" if is_fact else "findings"), outcome.stderr
    assert casebook.mismatches(case, outcome) == [], outcome.first
    assert (outcome.exit_code != 0) == case.answer.get("crashes", False), outcome.stderr


@pytest.mark.parametrize("case", first_of_each(FAULTS, family), ids=by_id)
def test_twin_is_healthy_and_silent(case: casebook.Case, tmp_path: Path) -> None:
    outcome = casebook.run(case, tmp_path / "run", "--healthy", audit="every=1")

    assert outcome.exit_code == 0, outcome.stderr
    losses, grads = printed(outcome.stdout, "loss"), printed(outcome.stdout, "grad")
    assert len(losses) > case.answer["step"]
    assert all(is_finite(v) for v in [*losses.values(), *grads.values()]), outcome.stdout
    assert outcome.alarms == []
    assert outcome.status == "healthy", outcome.stderr


@pytest.mark.parametrize("level", first_of_each(LEVELS, lambda level: None))
@pytest.mark.parametrize("case", first_of_each(NEAR_MISSES, decade), ids=by_id)
def test_near_miss_is_silent(case: casebook.Case, level: str, tmp_path: Path) -> None:
    outcome = casebook.run(case, tmp_path / "run", level=level, audit=LEVELS[level])

    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.alarms == []
    assert outcome.status == "healthy", outcome.stderr
