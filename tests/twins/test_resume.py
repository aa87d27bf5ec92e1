"""Runs stopped and resumed: what a checkpoint left out is named, and a whole one is the same to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from twinned import twin

from hypocenter.errors import ConfigError
from hypocenter.twins.runs import ProgramFailedError

SHARED = ("stopped", "uninterrupted")
PLAIN = {
    "optimizer": ("optimizer-state-not-restored", 9, "optimizer"),
    "scheduler": ("schedule-not-restored", 10, "optimizer"),
    "rng": ("random-state-not-restored", 9, "data"),
    "sampler": ("data-restarted", 9, "data"),
    "scaler": ("loss-scaler-not-restored", 9, "optimizer"),
    "weights": ("parameters-not-restored", 9, "param"),
    "step": ("wrong-step", 9, "data"),
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs lie that are the same for all faults."""
    return tmp_path_factory.mktemp("kept")


def test_a_whole_checkpoint_is_the_same_to_the_bit(tmp_path: Path, kept: Path) -> None:
    found = twin(
        "resume", tmp_path, "plain.py", "{folder}", kept=kept, shared=SHARED, stop_at=9, second_words=("--resume",)
    )

    assert (found.status, found.cause, found.floor_source) == ("same", None, "bits"), found.sentence
    assert {row.what: row.verdict for row in found.restored} == dict.fromkeys(
        ("parameters", "optimizer state", "batch", "learning rate", "loss scale", "random state"), "equal"
    )


@pytest.mark.slow
@pytest.mark.parametrize("fault", PLAIN)
def test_names_what_was_not_restored(fault: str, tmp_path: Path, kept: Path) -> None:
    cause, step, phase = PLAIN[fault]

    found = twin(
        "resume",
        tmp_path,
        "plain.py",
        "{folder}",
        kept=kept,
        shared=SHARED,
        stop_at=9,
        second_words=("--resume", fault),
    )

    assert (found.status, found.cause) == ("differs", cause), found.sentence
    assert found.first is not None
    assert (found.first.step, found.first.phase) == (step, phase)
    assert found.fix


def test_a_program_that_begins_again_did_not_resume(tmp_path: Path, kept: Path) -> None:
    found = twin("resume", tmp_path, "plain.py", "{folder}", kept=kept, shared=SHARED, stop_at=9)

    assert (found.status, found.cause) == ("differs", "not-resumed"), found.sentence
    assert "--resume-args" in found.fix


def test_what_nobody_saves_is_named_by_the_module_that_keeps_it(tmp_path: Path) -> None:
    found = twin("resume", tmp_path, "plain.py", "{folder}", "--count", stop_at=5, second_words=("--resume",))

    assert (found.status, found.cause) == ("differs", "hidden-state"), found.sentence
    assert found.first is not None
    assert (found.first.step, found.first.site, found.first.port) == (5, "2", "out[0]")


def test_a_program_that_finds_its_checkpoint_needs_no_words(tmp_path: Path) -> None:
    found = twin("resume", tmp_path, "plain.py", "{folder}", "--auto", stop_at=5, steps=2)

    assert found.status == "same", found.sentence
    assert "resumed at step 5" in found.sentence


def test_runs_that_share_a_folder_are_not_judged(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()

    found = twin("resume", tmp_path / "runs", "plain.py", str(tmp_path / "shared"), "--auto", stop_at=5, steps=2)

    assert found.status == "cannot-tell", found.sentence
    assert "{folder}" in found.fix


TRAINERS = {
    "hf.py": (
        "checkpoint-8",
        {
            "optimizer": "optimizer-state-not-restored",
            "scheduler": "schedule-not-restored",
            "rng": "random-state-not-restored",
            "data": "data-restarted",
            "weights": "parameters-not-restored",
            "step": "wrong-step",
        },
    ),
    "pl.py": (
        "step=8.ckpt",
        {
            "optimizer": "optimizer-state-not-restored",
            "scheduler": "schedule-not-restored",
            "weights": "parameters-not-restored",
            "epoch": "data-restarted",
            "dropout": "random-state-not-restored",
        },
    ),
}
OTHER_PROGRAMS = ("epoch", "dropout")  # faults that are in the program when it is not resumed too


@pytest.mark.night
@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_resumes_from_the_checkpoint_that_it_is_handed(name: str, tmp_path: Path) -> None:
    checkpoint, faults = TRAINERS[name]
    options = {"checkpoint": "{folder}/" + checkpoint, "stop_at": 9, "steps": 2}
    shared = {"kept": tmp_path / "kept", "shared": SHARED, **options}

    whole = twin("resume", tmp_path / "whole", name, "{folder}", **shared)
    found = {
        fault: twin("resume", tmp_path / fault, name, "{folder}", second_words=(fault,), **shared)
        if fault not in OTHER_PROGRAMS
        else twin("resume", tmp_path / fault, name, "{folder}", fault, **options)
        for fault in faults
    }

    assert whole.status == "same", whole.sentence
    assert {fault: one.cause for fault, one in found.items()} == faults
    assert {one.first.step for one in found.values() if one.first is not None} <= {8, 9}


def test_a_checkpoint_that_nobody_takes_is_an_error(tmp_path: Path, kept: Path) -> None:
    with pytest.raises(ProgramFailedError, match="nothing took the checkpoint"):
        twin("resume", tmp_path, "plain.py", "{folder}", kept=kept, shared=SHARED, stop_at=9, checkpoint="last.pt")


def test_where_to_stop_must_be_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="where the program is to be stopped"):
        twin("resume", tmp_path, "plain.py", "{folder}")
