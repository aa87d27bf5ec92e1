"""The catalogue of checks, and what becomes of their answers: status, order, sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_machine import Made

from hypocenter.doctor import catalogue
from hypocenter.doctor.answer import Check, ok
from hypocenter.doctor.answering import answer
from hypocenter.errors import ConfigError

OK = Check(code="toolkit.torch", area="toolkits", title="torch", status="ok", what="fine", host="a")
PROBLEM = replace(OK, code="toolkit.nvcc", title="nvcc", status="problem")
UNTOLD = replace(OK, code="comm.barrier", area="communication", title="barrier", status="cannot-tell")
NOTHING = replace(OK, status="not-applicable")


def test_code_and_file_of_a_check_have_one_name() -> None:
    for entry in catalogue.checks():
        assert entry.code.partition(".")[2].replace("-", "_") == entry.look.__module__.rpartition(".")[2]
        assert entry.code.partition(".")[0] == {"toolkits": "toolkit", "settings": "setting"}[entry.area]


def test_every_check_has_a_whole_page() -> None:
    pages = catalogue.manuals()

    assert len(pages) >= 20
    assert {code: page.missing for code, page in pages.items() if page.missing or not page.message} == {}


def test_a_check_that_raises_cannot_tell_and_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(machine: object) -> object:
        raise RuntimeError("a driver nobody thought of")

    broken = replace(next(one for one in catalogue.checks() if one.code == "toolkit.nccl"), look=raises)  # type: ignore[arg-type]
    others = [one for one in catalogue.checks() if one.code != "toolkit.nccl"]
    monkeypatch.setattr(catalogue, "checks", lambda plugins=(): [broken, *others])

    found = {one.code: one for one in catalogue.examine_machine(Made(root=tmp_path).machine())}

    assert (found["toolkit.nccl"].status, found["toolkit.nccl"].why) == (
        "cannot-tell",
        "RuntimeError: a driver nobody thought of",
    )
    assert len(found) == len(others) + 1


def test_a_plug_in_adds_a_check(tmp_path: Path) -> None:
    plugin = tmp_path / "shared_memory.py"
    plugin.write_text(
        '"""Little shared memory."""\nfrom hypocenter.doctor.catalogue import check\n'
        "from hypocenter.doctor.answer import problem\n\n\n"
        '@check("toolkit.made-shared-memory", title="shm")\ndef shm(machine):\n'
        '    return problem("64 MB", "too small")\n',
        encoding="utf-8",
    )
    found = list(catalogue.examine_machine(Made(root=tmp_path).machine(), (str(plugin),)))

    try:
        assert [one.what for one in found if one.title == "shm"] == ["64 MB"]
    finally:
        catalogue.CATALOGUE._entries.pop("toolkit.made-shared-memory")


@pytest.mark.parametrize(("text", "why"), [(None, "FileNotFoundError"), ("1 / 0\n", "ZeroDivisionError")])
def test_a_plug_in_that_was_asked_for_and_cannot_be_loaded_is_an_error(
    text: str | None, why: str, tmp_path: Path
) -> None:
    plugin = tmp_path / "checks_of_mine.py"
    if text is not None:
        plugin.write_text(text, encoding="utf-8")

    try:
        with pytest.raises(ConfigError, match="a plug-in cannot be loaded") as caught:
            list(catalogue.examine_machine(Made(root=tmp_path).machine(), (str(plugin),)))
    finally:
        catalogue.CATALOGUE.broken.clear()

    assert caught.value.where == str(plugin)
    assert caught.value.why.startswith(why)


def test_evidence_is_plain_data(tmp_path: Path) -> None:
    assert ok("fine", a=1).evidence == {"a": 1}


@pytest.mark.parametrize(
    ("checks", "asked", "missing", "status"),
    [
        ([OK], (), (), "healthy"),
        ([OK, replace(OK, status="warning")], (), (), "healthy"),
        ([OK, PROBLEM], (), (), "problems"),
        ([OK], (), (3,), "problems"),
        ([], (), (), "cannot-tell"),
        ([NOTHING], (), (), "cannot-tell"),
        ([OK, UNTOLD], (), (), "healthy"),
        ([OK, UNTOLD], ("communication",), (), "cannot-tell"),
        ([OK, replace(UNTOLD, status="ok")], ("communication",), (), "healthy"),
    ],
)
def test_status(checks: list[Check], asked: tuple[str, ...], missing: tuple[int, ...], status: str) -> None:
    assert answer(checks, asked=asked, missing=missing).status == status  # type: ignore[arg-type]


def test_problems_come_first() -> None:
    found = answer([NOTHING, OK, UNTOLD, PROBLEM, replace(OK, status="warning")])

    assert [one.status for one in found.checks] == ["problem", "warning", "cannot-tell", "ok", "not-applicable"]


def test_sentences() -> None:
    assert answer([OK]).sentence == "healthy: 1 check on a"
    assert answer([OK, PROBLEM, UNTOLD]).sentence == "1 problem in 2 checks on a: nvcc; 1 check could not tell"
    assert answer([OK, replace(OK, host="b")], n_ranks=4, missing=(2,)).sentence == (
        "1 problem in 2 checks on 2 machines, 4 ranks: rank 2 never answered"
    )
    assert answer([UNTOLD], asked=("communication",)).sentence == (
        "cannot tell: nothing about communication could be checked on a"
    )
