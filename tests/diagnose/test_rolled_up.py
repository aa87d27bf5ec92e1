"""No rule accuses because of what is rolled up, and what it would have accused is still there."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Diagnosis
from hypocenter.record.keeper import Keep
from hypocenter.record.reader import open_run
from hypocenter.record.run_file import finish_run, start_run
from tests.record.retained import loss_at, recorded

N_STEPS = 2_600


def diagnosed(out: Path, keep: Keep | None, bad: tuple[int, ...] = (), jump: int = -1) -> Diagnosis:
    out.mkdir(parents=True)
    start_run(out, ("train.py",), {}, 1, {}, {})
    recorded(out, N_STEPS, keep, bad=bad, loss=lambda step: loss_at(step) * (50.0 if step == jump else 1.0))
    finish_run(out, "finished", 0, [])
    return diagnose(open_run(out))


@pytest.mark.slow
@pytest.mark.parametrize(("bad", "jump", "n_bytes"), [((), -1, 200_000), ((900,), 1_500, 1 << 30)])
def test_findings_are_those_of_the_whole_recording(
    tmp_path: Path, bad: tuple[int, ...], jump: int, n_bytes: int
) -> None:
    whole = diagnosed(tmp_path / "whole", None, bad, jump)
    rolled = diagnosed(tmp_path / "rolled", Keep(n_bytes=n_bytes, n_steps=512), bad, jump)

    found = [[(f.code, f.severity, f.step, f.title) for f in each.findings] for each in (whole, rolled)]
    assert found[0] == found[1]
    assert (whole.status, whole.why) == (rolled.status, rolled.why)
    assert bool(found[0]) == bool(bad)
    assert [note for note in rolled.notes if "rolled up into windows" in note]
    assert not [note for note in whole.notes if "rolled up" in note]
