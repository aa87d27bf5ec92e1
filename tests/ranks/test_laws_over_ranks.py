"""Laws over ranks, on the programs of the study of mutations: sharded, cut over ranks, averaged by hand or by DDP."""

from __future__ import annotations

from pathlib import Path

import pytest
from by_day import first_of_each
from launch import launch

JOB = Path(__file__).with_name("mutation_job.py")
AT = 7


@pytest.mark.slow
@pytest.mark.parametrize("program", ["in_one_bucket", "ddp", "fsdp", "zero", "tensor_parallel"])
def test_a_healthy_program_is_left_as_it_is(program: str, tmp_path: Path) -> None:
    watched = launch(JOB, program, out=tmp_path / "run", config={"audit": "every=1"})

    assert watched.diagnosis["findings"] == []
    assert "could not be audited" not in watched.stderr
    assert sorted(watched.stdout.splitlines()) == sorted(launch(JOB, program).stdout.splitlines())
    assert len(watched.stdout.splitlines()) > 10


@pytest.mark.parametrize(
    ("program", "error", "parameter", "code", "words"),
    first_of_each(
        [
            ("fsdp", "gradient doubled", "up.weight", "HC308", "is 2 times what the ranks' micro-batches give"),
            ("fsdp", "all gradients doubled", "", "HC308", "all gradients are 2 times"),
            ("fsdp", "gradient zeroed", "norm.weight", "HC308", "is not used"),
            ("fsdp", "not zeroed", "", "HC308", "still hold those of the step before"),
            ("tensor_parallel", "gradient negated", "down.weight", "HC308", "is -1 times"),
            ("tensor_parallel", "doubled on a rank", "head.weight", "HC301", "on rank 1 is 2 times"),
            ("zero", "not shared", "", "HC301", "went apart"),
            ("by_hand", "not averaged", "head.weight", "HC308", "is not added to those of the other ranks"),
            ("ddp", "replica written", "up.bias", "HC301", "went apart"),
        ],
        lambda case: case[3],
    ),
)
def test_what_breaks_a_law_is_named(
    program: str, error: str, parameter: str, code: str, words: str, tmp_path: Path
) -> None:
    config = {"audit": "every=1"}
    ended = launch(JOB, program, error, parameter, str(AT), out=tmp_path / "run", config=config)

    assert ended.alarms, ended.stderr
    first = ended.alarms[0]
    assert (first["code"], first["step"] - AT in (0, 1)) == (code, True), first
    assert words in " ".join([first["title"], *first["why"]])
    assert not parameter or first["param"] == parameter


def test_without_audits_a_gradient_that_is_not_shared_any_more_is_seen(tmp_path: Path) -> None:
    job = ("by_hand", "not averaged", "head.weight", str(AT))
    ended = launch(JOB, *job, out=tmp_path / "run", config={"audit": "never"})

    assert [(f["code"], f["step"], f["param"]) for f in ended.alarms] == [("HC309", AT, "head.weight")]


@pytest.mark.night
def test_gradients_that_the_program_compresses_are_a_note(tmp_path: Path) -> None:
    ended = launch(JOB.with_name("low_rank_job.py"), out=tmp_path / "run", config={"audit": "every=1"})

    told = [finding for finding in ended.diagnosis["findings"] if finding["code"] == "HC308"]
    assert ended.alarms == []
    assert [finding["severity"] for finding in told] == ["note"], ended.stderr
    assert "the communication hook powerSGD_hook" in told[0]["why"][-1]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "codes"), [("forgotten", ["HC308"]), ("right", [])])
def test_sums_that_are_divided_for_some_parameters_only_are_named(how: str, codes: list[str], tmp_path: Path) -> None:
    ended = launch(JOB.with_name("undivided_job.py"), how, out=tmp_path / "run")

    assert [f["code"] for f in ended.alarms] == codes
    assert all("of 3 parameters are off by the number of ranks" in f["title"] for f in ended.alarms)
