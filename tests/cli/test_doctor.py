"""`hypocenter doctor` on this machine, and on made ones."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from recordings import run

from hypocenter.cli.commands import doctor
from hypocenter.doctor.answer import Answer, Check
from hypocenter.doctor.machine import Machine
from hypocenter.json_answer import published

HEALTHY = {"status": "imported", "version": "2.6.0+cpu", "cuda": None, "switches": {"threads": 2}}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """The command looks at an empty machine with a CPU build of torch."""
    machine = Machine(root=tmp_path, torch=HEALTHY, packages={"torch": "2.6.0"}, host="made")
    monkeypatch.setattr(doctor, "this_machine", lambda **_: machine)
    monkeypatch.setattr(doctor, "_burn", lambda _: [])
    for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def faulty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **torch: object) -> None:
    """The command looks at a machine whose torch cannot be imported."""
    facts = {"status": "failed", "error": "OSError: libcudnn.so.9: cannot open shared object file", **torch}
    monkeypatch.setattr(doctor, "this_machine", lambda **_: Machine(root=tmp_path, torch=facts, host="made"))


def test_this_machine_is_healthy() -> None:
    """Whatever the CI runs on has a torch that works, and no fault that is none."""
    said = run("doctor", "--json")

    answer = json.loads(said.out)
    jsonschema.validate(answer, published(Answer))
    assert [one for one in answer["checks"] if one["status"] == "problem"] == []
    assert (said.code, answer["status"]) == (0, "healthy")
    assert {"toolkit.torch", "setting.torch-switches", "arithmetic.burn"} <= {
        one["code"] for one in answer["checks"] if one["status"] == "ok"
    }


def test_a_healthy_laptop(made: pytest.MonkeyPatch) -> None:
    said = run("doctor")

    assert said.code == 0
    assert said.out.startswith("healthy: 2 checks on made\n")
    assert "no GPU and no NPU here" in said.out
    assert "hypocenter doctor --comm" in said.out


def test_a_problem(made: pytest.MonkeyPatch, tmp_path: Path) -> None:
    faulty(made, tmp_path)

    said = run("doctor")

    assert said.code == 1
    assert "cannot open shared object file" in said.out
    assert said.err == "next: hypocenter explain toolkit.torch\n"


def test_nothing_that_could_be_asked(made: pytest.MonkeyPatch, tmp_path: Path) -> None:
    faulty(made, tmp_path, status="missing")

    said = run("doctor")

    assert said.code == 5
    assert said.out.startswith("cannot tell: ")


def test_arithmetic_is_part_of_it_unless_refused(made: pytest.MonkeyPatch) -> None:
    burnt = Check(code="arithmetic.burn", area="arithmetic", title="sums", status="problem", what="bad", host="made")
    made.setattr(doctor, "_burn", lambda _: [burnt])

    assert (run("doctor").code, run("doctor", "--no-arithmetic").code) == (1, 0)


def test_a_number_of_ranks_is_for_communication(made: pytest.MonkeyPatch) -> None:
    said = run("doctor", "--ranks", "3")

    assert said.code == 2
    assert "= fix: hypocenter doctor --comm --ranks 3" in said.err


def test_only_the_first_rank_of_a_machine_looks(made: pytest.MonkeyPatch) -> None:
    made.setenv("LOCAL_RANK", "1")

    said = run("doctor")

    assert (said.code, said.out) == (0, "")


def test_what_is_asked_for_reaches_the_machine(made: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, object] = {}
    machine = Machine(root=tmp_path, torch=HEALTHY)
    made.setattr(doctor, "this_machine", lambda **given: asked.update(given) or machine)

    run("doctor", "--build", "--timeout", "8")

    assert asked == {"timeout_s": 4.0, "builds": True}


@pytest.mark.parametrize("code", ["toolkit.nvcc-matches-torch", "setting.NVIDIA_TF32_OVERRIDE", "toolkit.cann"])
def test_explain_has_a_page(code: str) -> None:
    said = run("explain", code)

    assert said.code == 0
    assert "How it is decided" in said.out
