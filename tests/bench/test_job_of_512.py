"""A small job of many ranks, as the benchmark writes it: its faults are found, and what is read is bounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hypocenter.detect import group_engine
from hypocenter.diagnose import partial
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.diagnose.logical_norm import grad_norms
from hypocenter.json_answer import to_json
from hypocenter.nouns import Diagnosis
from hypocenter.record.reader import RecordedRun, open_run
from hypocenter.report.formats import html

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """16 ranks (dp 4 x pp 2 x tp 2), four layers, twenty steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        from bench.job_of_512.job import Job
        from bench.job_of_512.simulate import write_job

        run, job = tmp_path_factory.mktemp("job") / "run", Job(ranks=16, layers=4, steps=20, tp=2, pp=2)
        write_job(run, job, processes=1)
        return job, run


@pytest.fixture
def job(written: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT))
    return written[0]


@pytest.fixture
def recording(written: tuple[Any, Path]) -> RecordedRun:
    return open_run(written[1])


def test_every_planted_fault_is_found_and_nothing_else(job: Any, recording: RecordedRun) -> None:
    from bench.job_of_512.answers import complaints

    diagnosis = json.loads(to_json(diagnose(recording)))

    assert list(complaints(job, diagnosis, list(group_engine.group_rules()))) == []
    assert diagnosis["n_sites"] == 4 * 12 + 5 + 7


def test_rows_left_out_of_a_large_job_change_no_finding(
    recording: RecordedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = diagnose(recording)

    monkeypatch.setattr(partial, "MANY_RANKS", 1000)

    assert diagnose(recording) == short


def test_one_cause_is_one_finding_without_local_gradients_too(
    job: Any, recording: RecordedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        group_engine, "group_rules", lambda plugins=(): dict[str, Any]()
    )  # as in a recording without them

    found: Diagnosis = diagnose(recording)

    (only,) = [f for f in found.findings if f.kind == "nonfinite"]
    assert (only.step, only.param) == (job.faults.nan_step, job.faults.nan_param)
    assert all(len(line) < 200 for line in only.then)


def test_the_norm_of_the_job_is_that_of_the_logical_parameters(job: Any, recording: RecordedRun) -> None:
    from bench.job_of_512.simulate import _size

    norms = {norm.step: norm for norm in grad_norms(recording.table(), recording.places)}

    expected = 0.0
    for pp in range(job.pp):
        for parameter in job.parameters(pp):
            shards = range(job.tp if parameter.split is not None else 1)
            expected += sum(_size(job, parameter, job.rank_at(dp=0, pp=pp, tp=tp), 3) ** 2 for tp in shards)
    assert norms[3].norm == pytest.approx(expected**0.5, rel=1e-9)
    assert norms[3].why_not == ""


def test_the_page_of_it_is_small(recording: RecordedRun) -> None:
    text = html.render(recording, diagnose(recording))

    assert len(text.encode()) < 2 << 20


def test_the_real_size_has_its_faults_on_ranks_of_their_own(job: Any) -> None:
    from dataclasses import replace

    from bench.job_of_512.job import mesh

    tp, pp = mesh(512)
    faults = replace(job, ranks=512, layers=24, steps=50, tp=tp, pp=pp).faults

    assert (tp, pp) == (8, 4)
    assert len({faults.nan_rank, faults.drift_rank, faults.missing_rank, faults.cut_rank}) == 4
