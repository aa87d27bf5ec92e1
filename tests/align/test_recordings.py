"""Recordings with a program that is played by a function: what is made, kept, asked for elsewhere."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hypocenter.align.alignment import ElsewhereError, ProgramFailedError
from hypocenter.align.children import clean_environment, start
from hypocenter.align.plan import Plan, plan_of
from hypocenter.align.recordings import Recordings, need


class Played:
    """Writes an empty recording, or fails."""

    def __init__(self, code: int = 0, records: bool = True, ranks: bool = True) -> None:
        self.code, self.records, self.ranks = code, records, ranks
        self.calls: list[tuple[list[str], dict[str, str], Path]] = []

    def __call__(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: Path, timeout_s: float | None
    ) -> int:
        self.calls.append((list(argv), dict(env), cwd))
        output.write_text("line one\nRuntimeError: no such card\n")
        folder = Path(argv[argv.index("--out") + 1])
        if self.records:
            (folder / "rank-00000" if self.ranks else folder).mkdir(parents=True)
            (folder / "run.json").write_text('{"format": 1}')
        return self.code


def _plan(folder: Path, **candidate: object) -> Plan:
    given = candidate or {"command": "python b.py"}
    return plan_of({"baseline": {"command": "A=1 python a.py -x"}, "candidate": given}, folder / "plan.toml")


def _recordings(plan: Plan, played: Played) -> Recordings:
    return Recordings(plan=plan, folder=plan.state / "runs", start=played)


def test_runs_a_program_once_with_its_variables_in_its_folder(tmp_path: Path) -> None:
    plan, played = _plan(tmp_path), Played()
    recordings = _recordings(plan, played)

    path = recordings.get(need(plan, "baseline", "steps"))
    again = _recordings(plan, played).get(need(plan, "baseline", "steps"))

    assert path == again
    assert path.is_dir()
    assert len(played.calls) == 1
    argv, env, cwd = played.calls[0]
    assert argv[-3:] == ["python", "a.py", "-x"]
    assert "--stop-after-step" in argv
    assert env["A"] == "1"
    assert cwd == tmp_path
    assert list(recordings.folder.glob("unfinished-*")) == []


def test_what_was_cut_off_is_made_again(tmp_path: Path) -> None:
    plan, played = _plan(tmp_path), Played(code=-9)
    with pytest.raises(ProgramFailedError):
        _recordings(plan, played).get(need(plan, "baseline", "steps"))

    played.code = 0
    path = _recordings(plan, played).get(need(plan, "baseline", "steps"))

    assert path.is_dir()
    assert len(played.calls) == 2


@pytest.mark.parametrize(
    ("played", "how"),
    [(Played(code=1), "exit code 1"), (Played(records=False), "no recording"), (Played(ranks=False), "no recording")],
)
def test_a_program_that_fails_is_named_with_what_it_said(tmp_path: Path, played: Played, how: str) -> None:
    plan = _plan(tmp_path)

    with pytest.raises(ProgramFailedError) as error:
        _recordings(plan, played).get(need(plan, "candidate", "frozen"))

    assert how in error.value.what
    assert "RuntimeError: no such card" in error.value.why


def test_what_is_recorded_elsewhere_is_asked_for_with_the_command_to_type_there(tmp_path: Path) -> None:
    plan = _plan(tmp_path, recordings="npu", command="python b.py --x 'a b'")
    played = Played()

    with pytest.raises(ElsewhereError) as error:
        _recordings(plan, played).get(need(plan, "candidate", "frozen"))

    assert error.value.fix.startswith("hypocenter run --out frozen --deterministic")
    assert error.value.fix.endswith("--impose-lr 0 --stop-after-step 999 python b.py --x 'a b'")
    assert not played.calls


def test_what_was_brought_from_elsewhere_is_taken(tmp_path: Path) -> None:
    plan = _plan(tmp_path, recordings="npu", logs={"long": "npu.log"})
    brought = tmp_path / "npu" / "frozen"
    (brought / "rank-00000").mkdir(parents=True)
    (brought / "run.json").write_text("{}")
    recordings = _recordings(plan, Played())

    assert recordings.get(need(plan, "candidate", "frozen")) == brought
    assert recordings.get(need(plan, "candidate", "long")) == tmp_path / "npu.log"


def test_options_of_another_session_are_not_handed_on(tmp_path: Path) -> None:
    env = clean_environment({"HYPOCENTER_RUN": "x", "PYTHONPATH": "src", "A": "1"}, tmp_path)

    assert env == {"PYTHONPATH": str(tmp_path / "src"), "A": "1"}


def test_a_child_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    code = start(
        ["/bin/sh", "-c", "echo begun; exec sleep 60"], env=dict(os.environ), cwd=tmp_path, output=tmp_path / "out",
        timeout_s=0.3,
    )  # fmt: skip

    assert code == 124
    assert (tmp_path / "out").read_text() == "begun\n"
