"""The answer on a screen and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import guide_machine
import jsonschema
from made_machine import Made

from hypocenter.doctor.answer import Answer, Check
from hypocenter.doctor.answering import answer
from hypocenter.doctor.settings import examine_settings
from hypocenter.json_answer import published, to_json
from hypocenter.report import doctor_screen
from hypocenter.report.screen import Screen

PASTE = "export PATH=/usr/local/cuda-10.2/bin:$PATH"
PROBLEM = Check(
    code="toolkit.nvcc-matches-torch", area="toolkits", title="nvcc", status="problem",
    what="nvcc is 11.0, torch was built for CUDA 10.2", why="torch refuses", fix=(PASTE,), host="node1",
)  # fmt: skip
GOLD = """\
1 problem in 3 checks on node1: nvcc

toolkits
  ✗ nvcc       is 11.0, torch was built for CUDA 10.2
      why: torch refuses
      fix: export PATH=/usr/local/cuda-10.2/bin:$PATH
  ✓ torch      fine

settings
  ✓ NCCL_ALGO  =Ring (the order of sums)

note: look again
not looked at: CANN (why: --json)
"""


def small() -> Answer:
    """One of each that matters."""
    fine = replace(PROBLEM, code="toolkit.torch", title="torch", status="ok", what="fine", why="", fix=())
    absent = replace(fine, code="toolkit.cann", title="CANN", status="not-applicable", what="no NPU")
    setting = replace(
        fine, code="setting.NCCL_ALGO", area="settings", title="NCCL_ALGO", what="NCCL_ALGO=Ring (the order of sums)"
    )
    return answer([absent, fine, PROBLEM, setting], notes=("look again",))


def faulty(tmp_path: Path) -> Answer:
    """The answer about a machine with many faults."""
    made = Made(root=tmp_path, cuda="10.2", driver="390.46")
    made.use_deepspeed()
    made.torch["devices"] = []
    made.put_first(made.toolkit("11.0"))
    made.environ |= {"NVIDIA_TF32_OVERRIDE": "1", "CUDA_HOME": "/gone\x1b[31m", "DS_BUILD_AIO": "1"}
    machine = made.machine()
    return answer([*made.all(), *examine_settings(machine)])


def test_screen() -> None:
    assert doctor_screen.render(small()) == GOLD


def test_screen_without_the_marks() -> None:
    text = doctor_screen.render(small(), can_draw=False)

    assert "  x nvcc " in text
    assert "  + torch " in text
    assert text.isascii()


def test_a_line_to_paste_is_never_wrapped(tmp_path: Path) -> None:
    found = faulty(tmp_path)

    lines = doctor_screen.render(found, Screen(width=60)).splitlines()

    for check in found.checks:
        if check.status != "ok" and "\x1b" not in "".join(check.fix):
            assert all(any(line.endswith(one) for line in lines) for one in check.fix)


def test_other_lines_are_no_wider_than_the_screen(tmp_path: Path) -> None:
    found = faulty(tmp_path)
    pasted = {line for check in found.checks for line in check.fix}

    wide = [line for line in doctor_screen.render(found, Screen(width=70)).splitlines() if len(line) > 70]

    assert [line for line in wide if not any(line.endswith(one) for one in pasted) and "/gone" not in line] == []


def test_what_a_machine_says_cannot_colour_the_screen(tmp_path: Path) -> None:
    assert "\x1b" not in doctor_screen.render(faulty(tmp_path))


def test_lines_that_were_printed_are_not_printed_again() -> None:
    again = replace(PROBLEM, code="toolkit.side-by-side", title="toolkits")

    text = doctor_screen.render(answer([PROBLEM, again]))

    assert text.count(PASTE) == 1
    assert "      fix: the lines above" in text


def test_ranks_and_hosts_are_named_where_there_are_several() -> None:
    other = replace(PROBLEM, host="node2", rank=5)

    text = doctor_screen.render(answer([PROBLEM, other], n_ranks=8))

    assert "node1: is 11.0" in text
    assert "rank 5 on node2: is 11.0" in text


def test_json_validates_and_says_the_same(tmp_path: Path) -> None:
    for found in (small(), faulty(tmp_path)):
        plain = json.loads(to_json(found))

        jsonschema.validate(plain, published(Answer))
        assert plain["schema"] == "hypocenter.doctor/1"
        assert [one["code"] for one in plain["checks"]] == [one.code for one in found.checks]
        assert plain["status"] == found.status


def test_schema_itself_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(published(Answer))


def test_page_shows_what_is_said_of_the_guide_s_machine(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")

    begin = '<!-- written by tests/doctor/guide_machine.py -->\n```text title="example"\n'
    shown = page.partition(begin)[2].partition("```\n")[0]

    first, rest = shown.split("…\n")
    screen = guide_machine.screen(tmp_path)
    assert screen.startswith(first)
    assert screen.endswith(rest)
