"""Each change on a program in which it must not matter, and on one in which it does; and where it does not apply."""

from __future__ import annotations

from pathlib import Path

import pytest
from by_day import first_of_each
from twinned import twin

from hypocenter.twins.change import changes
from hypocenter.twins.judging import NotRepeatableError
from hypocenter.twins.runs import NotApplicableError

SPLIT = {"summed.py": ("--batch", "4", "--accumulate", "2"), "ranked.py": ("--batch", "4")}
PLANTED = {
    "checkpointing": ("odd.py", ("checkpointed",), "same", None, ""),
    "checkpointing: other random numbers": (
        "odd.py",
        ("checkpointed", "undrawn"),
        "differs",
        "recomputed-otherwise",
        "0.net.2",
    ),
    "checkpointing: counts its calls": ("odd.py", ("checkpointed", "counted"), "differs", "recomputed-otherwise", "0"),
    "attention": ("odd.py", ("attention",), "same", None, ""),
    "attention: another mask": ("odd.py", ("attention", "mask"), "differs", "kernel-dependence", "0"),
    "precision": ("odd.py", ("mixed",), "same", None, ""),
    "precision: cancellation": ("odd.py", ("mixed", "square"), "differs", "precision-dependence", "1"),
    "eager": ("odd.py", ("compiled",), "same", None, ""),
    "eager: a backend that is wrong": ("odd.py", ("compiled", "backend"), "differs", "compile-mismatch", ""),
    "poison": ("odd.py", ("empty",), "same", None, ""),
    "poison: read": ("odd.py", ("empty", "read"), "differs", "uninitialised-read", "0.net.0"),
    "workers": ("loaded.py", ("0", "global"), "same", None, ""),
    "workers: each seeds its own": ("loaded.py", ("0", "own"), "same", None, ""),
    "workers: nobody seeds them": ("loaded.py", ("0", "copied"), "differs", "workers-draw-the-same", "dataset.rng"),
    "workers: one seed for all": ("loaded.py", ("0", "fixed"), "differs", "workers-draw-the-same", "numpy.random"),
    "workers: counts": ("loaded.py", ("0", "counted"), "differs", "worker-dependent-data", "batch.in[0]"),
    "workers: a stream": ("loaded.py", ("0", "stream"), "cannot-tell", None, ""),
    "workers: a stream that is not split": ("loaded.py", ("0", "whole"), "differs", "stream-not-split", "batch"),
    "threads=2: divides its work": ("odd.py", ("threaded",), "differs", "thread-dependence", "0"),
    "ranks": ("ranked.py", (), "same", None, ""),
    "ranks: nobody averages": (
        "ranked.py",
        ("--fault", "unwrapped"),
        "differs",
        "missing-gradient-sync",
        "0.weight",
    ),
    "ranks: summed": ("ranked.py", ("--fault", "summed"), "differs", "gradients-summed", "0.weight"),
    "ranks: the same samples": ("ranked.py", ("--fault", "shared"), "differs", "ranks-share-data", "batch"),
    "ranks: another order": ("ranked.py", ("--fault", "shuffled"), "cannot-tell", None, ""),
    "accumulation": ("summed.py", (), "same", None, ""),
    "accumulation: undivided": (
        "summed.py",
        ("--fault", "undivided"),
        "differs",
        "accumulation-normalisation",
        "0.weight",
    ),
    "accumulation: undivided, and clipped": (
        "summed.py",
        ("--fault", "undivided", "--clip", "3"),
        "differs",
        "accumulation-normalisation",
        "0.weight",
    ),
    "accumulation: unequal": ("summed.py", ("--fault", "unequal"), "differs", "split-dependence", "0.weight"),
    "accumulation: the schedule": (
        "summed.py",
        ("--fault", "stepped"),
        "differs",
        "schedule-counts-micro-batches",
        "lr",
    ),
}


@pytest.mark.parametrize("case", first_of_each(PLANTED, lambda case: case.partition(":")[0]))
def test_says_whether_it_matters_and_where(case: str, tmp_path: Path) -> None:
    name, words, status, cause, site = PLANTED[case]
    change = case.partition(":")[0]
    more = SPLIT.get(name, ())

    found = twin(change, tmp_path, name, *words, steps=2, second_words=more)

    assert (found.status, found.cause) == (status, cause), found.sentence
    if status == "differs":
        assert found.first is not None
        assert found.first.site == site
        assert found.fix or change in ("attention", "precision")
    else:
        assert found.first is None


@pytest.mark.night
def test_names_the_operator_that_is_compiled_wrong(tmp_path: Path) -> None:
    found = twin("eager", tmp_path, "odd.py", "compiled", "backend", steps=1)

    assert found.first is not None
    assert found.first.op == "tanh"
    assert found.why[0].startswith("the stage: the backend")
    assert found.why[1].startswith("the operator: tanh of 0.net.2, whose forward is apart by")


NOT_THERE = {
    "checkpointing": ("odd.py", ("plain",), "nothing is checkpointed"),
    "attention": ("odd.py", ("plain",), "does not call scaled_dot_product_attention"),
    "attention=flash": ("odd.py", ("attention",), "the same kernel in both runs"),
    "precision": ("odd.py", ("plain",), "no region of autocast"),
    "eager": ("odd.py", ("plain",), "compiles nothing"),
    "workers": ("odd.py", ("plain",), "makes no DataLoader"),
    "accumulation": ("odd.py", ("plain",), "no more micro-batches"),
    "accumulation: BatchNorm": ("summed.py", ("--fault", "norm"), "normalises over the samples"),
    "ranks": ("odd.py", ("plain",), "nobody makes the batches of a rank smaller"),
    "threads=1": ("odd.py", ("plain",), "the same in both runs"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", NOT_THERE)
def test_a_change_that_changes_nothing_is_an_error(case: str, tmp_path: Path) -> None:
    name, words, said = NOT_THERE[case]
    more = SPLIT.get(name, ())

    with pytest.raises(NotApplicableError, match=said):
        twin(case.partition(":")[0], tmp_path, name, *words, steps=1, second_words=more)


@pytest.mark.night
@pytest.mark.parametrize("change", ["accumulation", "ranks"])
def test_a_trainer_divides_its_batches_when_it_is_asked_to(change: str, tmp_path: Path) -> None:
    found = twin(change, tmp_path, "hf.py", "{folder}", steps=2)

    assert (found.status, found.cause) == ("same", None), found.sentence


def test_another_number_of_threads_is_within_the_measured_noise(tmp_path: Path) -> None:
    found = twin("threads=2", tmp_path, "summed.py", steps=2)

    assert (found.status, found.cause) == ("same", None), found.sentence
    assert "with 2 threads in place of 1" in found.sentence


def test_of_a_program_that_does_not_repeat_itself_nothing_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotRepeatableError, match="does not repeat itself") as raised:
        twin("checkpointing", tmp_path, "unseeded.py", repeats=True, steps=1)

    assert "twin nothing" in raised.value.fix


def test_every_change_has_a_whole_page_and_stands_in_its_place() -> None:
    known = changes()

    assert list(known)[:7] == ["nothing", "resume", "workers", "accumulation", "threads", "poison", "eager"]
    assert {name: one.manual.missing for name, one in known.items()} == dict.fromkeys(known, ())
