"""Tasks that start side by side share one run directory, whoever comes first."""

import threading

import pytest

from hypocenter.errors import ExistsError
from hypocenter.launcher import Task
from hypocenter.record.run_file import start_run
from hypocenter.record.shared_directory import await_others, note_end, shared_run_directory
from hypocenter.record.whereabouts import read_whereabouts
from hypocenter.record.whereabouts_file import WhereaboutsFile


def task(number, job="77.0", n=2):
    return Task(number=number, n_tasks=n, job=job)


def shared(path, number, *, job="77.0", force=False, attempt=0, wait_s=0.2, said=None):
    warn = (said if said is not None else []).append
    return shared_run_directory(str(path), force, task(number, job), attempt=attempt, wait_s=wait_s, warn=warn)


def recorded(path):
    start_run(path, ("train.py",), {}, 2, {})
    (path / "rank-00000").mkdir()


def test_a_task_that_comes_early_waits_for_the_first(tmp_path):
    found, out = [], tmp_path / "run"
    early = threading.Thread(target=lambda: found.append(shared(out, 1, wait_s=10)))
    early.start()

    found.append(shared(out, 0))
    early.join()

    assert found == [out, out]


def test_every_task_refuses_a_directory_that_holds_another_recording(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    recorded(out)

    for number in (0, 1):
        with pytest.raises(ExistsError, match="a recording exists there already"):
            shared(out, number)


def test_a_second_run_of_the_same_job_is_refused_by_every_task(tmp_path):
    out = shared(tmp_path / "run", 0)
    recorded(out)
    for number in (0, 1):
        note_end(out, task(number))

    for number in (0, 1):
        with pytest.raises(ExistsError):
            shared(out, number)


def test_with_force_the_others_wait_until_the_old_recording_is_gone(tmp_path):
    out = tmp_path / "run"
    shared(out, 0, job="76.0")
    recorded(out)
    said = []

    assert shared(out, 1, force=True, wait_s=0.1, said=said) == out  # the first has not come yet
    shared(out, 0, force=True)
    assert not (out / "rank-00000").exists()
    assert shared(out, 1, force=True, said=said) == out
    assert len(said) == 1


def test_without_the_first_task_a_task_records_and_says_so(tmp_path):
    said = []

    assert shared(tmp_path / "run", 1, wait_s=0.0, said=said).is_dir()
    assert "task 0 has not made" in said[0]


def test_a_job_that_is_started_again_goes_on_in_its_recording_and_no_other_does(tmp_path):
    out = tmp_path / "run"
    shared(out, 0)
    recorded(out)

    assert shared(out, 0, attempt=1) == shared(out, 1, attempt=1) == out
    assert (out / "rank-00000").exists()
    with pytest.raises(ExistsError):
        shared(out, 0, job="78.0", attempt=1)
    with pytest.raises(ExistsError):
        shared(out, 0)  # the same job, not started again


def test_the_first_task_waits_for_the_end_of_the_others(tmp_path):
    out = shared(tmp_path / "run", 0)

    note_end(out, task(0))
    assert not await_others(out, task(0), 0.0)
    note_end(out, task(1))
    assert await_others(out, task(0), 0.0)


def test_the_first_task_takes_a_directory_in_which_others_have_only_said_where_they_are(tmp_path):
    out = tmp_path / "run"
    early = WhereaboutsFile(out / "rank-00001", rank=1, world_size=2)
    early.close()

    assert shared(out, 0) == out

    assert read_whereabouts(out / "rank-00001") is not None


def test_a_recording_of_which_only_streams_are_left_is_not_taken_for_that(tmp_path):
    out = tmp_path / "run"
    WhereaboutsFile(out / "rank-00001", rank=1, world_size=2).close()
    (out / "rank-00001" / "events-host-1.arrow").touch()

    with pytest.raises(ExistsError):
        shared(out, 0)
