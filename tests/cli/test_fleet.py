"""`hypocenter fleet`: what many recordings say of one device."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest
from recordings import run

from hypocenter.diagnose.fleet import Fleet
from hypocenter.json_answer import published
from hypocenter.nouns import Attempt, Diagnosis, Finding, Place
from hypocenter.record.place_file import write_place
from hypocenter.record.run_file import start_run


def recorded(path: Path, *found: Finding, hosts: tuple[str, ...] = ("a",), serial: str = "GPU-7") -> Path:
    """A recording of two ranks whose diagnosis is given; rank 1 was on `hosts`, one after the other."""
    start_run(path, ["train.py"], {}, 2, {})
    for number, host in enumerate(hosts):
        for rank in (0, 1):
            place = Place(rank=rank, world_size=2, host=host, device=f"cuda:{rank}", serial=serial if rank else "")
            write_place(path, place, Attempt(number=number, host=host, pid=100 * number + rank))
    diagnosis = Diagnosis(run=path.name, status="findings" if found else "healthy", findings=found)
    (path / "diagnosis.json").write_bytes(msgspec.json.encode(diagnosis))
    return path


def fault(rank: int = 1, cause: str = "hardware-fault", **others: object) -> Finding:
    kind = {"hardware-fault": "hardware", "rank-lost": "environment"}[cause]
    said = {"code": "HC341", "severity": "error", "title": "computed wrong", "confidence": "likely", **others}
    return Finding(kind=kind, step=5, rank=rank, cause=cause, **said)  # type: ignore[arg-type]


def test_a_device_is_followed_to_another_host(tmp_path: Path) -> None:
    recorded(tmp_path / "1", fault(), fault())
    recorded(tmp_path / "2")
    recorded(tmp_path / "3", fault(), hosts=("b",))
    said = run("fleet", tmp_path)
    answer = json.loads(run("fleet", tmp_path, "--json").out)

    jsonschema.validate(answer, published(Fleet))
    assert (said.code, answer["status"], len(answer["devices"])) == (1, "again", 1)
    assert said.out.startswith("GPU-7 b a cuda:1: at fault in 2, named in 2 of 3 recordings\n")
    assert said.out.endswith("1 device of 3 to look at, in 3 recordings\n")
    assert [each["host"] for each in answer["devices"][0]["named"]] == ["b", "a", "a"]


@pytest.mark.parametrize(
    ("found", "code", "listed"),
    [
        ([fault()], 0, True),
        ([fault(severity="note")], 0, False),
        ([fault(cause="rank-lost")], 0, False),
    ],
    ids=["once", "a note", "lost once"],
)
def test_once_is_no_pattern(tmp_path: Path, found: list[Finding], code: int, listed: bool) -> None:
    recorded(tmp_path / "one", *found)
    recorded(tmp_path / "two")
    said = run("fleet", tmp_path)

    assert said.code == code
    assert ("GPU-7" in said.out) == listed


def test_lost_twice_is_listed_but_no_fault(tmp_path: Path) -> None:
    for name in ("one", "two"):
        recorded(tmp_path / name, fault(cause="rank-lost"))
    said = run("fleet", tmp_path)

    assert said.code == 0
    assert "at fault in 0, named in 2 of 2 recordings" in said.out


def test_of_a_rank_that_moved_nothing_is_said(tmp_path: Path) -> None:
    recorded(tmp_path / "one", fault(), hosts=("a", "b"))
    said = run("fleet", tmp_path)

    assert said.code == 0
    assert said.out == "0 devices of 2 to look at, in 1 recording\n"
    assert "which device rank 1 had at step 5 is not known" in said.err


def test_devices_without_a_number_are_known_by_host_and_place(tmp_path: Path) -> None:
    recorded(tmp_path / "one", fault(), serial="")
    recorded(tmp_path / "two", fault(), serial="", hosts=("b",))
    answer = json.loads(run("fleet", tmp_path, "--json").out)

    assert [device["hosts"] for device in answer["devices"]] == [["a"], ["b"]]


def test_what_was_not_checked_is_said(tmp_path: Path) -> None:
    (recorded(tmp_path / "one") / "diagnosis.json").unlink()

    assert f"not looked at yet: hypocenter check {tmp_path / 'one'}" in run("fleet", tmp_path).err
    assert run("fleet", tmp_path / "none").code == 4
