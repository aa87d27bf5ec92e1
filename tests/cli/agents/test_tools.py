"""The tools without the protocol: made of the commands, confined to their roots, bounded."""

from __future__ import annotations

import json
from pathlib import Path

import click
import jsonschema
import pytest
from recordings import record, run

from hypocenter.cli.agents.roots import OutsideError, allowed
from hypocenter.cli.agents.tools import PAGING, TOOLS, Tool, call, command_of, input_schema, sentence
from hypocenter.errors import HypocenterError


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root").resolve()
    record(folder / "runs" / "bad")
    record(folder / "runs" / "good", fails=False)
    return folder


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.command)
def test_a_tool_offers_what_its_command_has_and_nothing_that_writes_or_loads(tool: Tool) -> None:
    known = {one.name: one for one in command_of(tool).params}
    offered = [known[name] for name in tool.parameters]

    jsonschema.Draft202012Validator.check_schema(input_schema(tool))
    assert "format_name" in known or "as_json" in known
    for one in offered:
        assert not set(one.opts) & {
            "--plugin",
            "--report",
            "--plot",
            "--export",
            "-o",
            "--force",
            "--write-map",
            "--again",
        }
    assert len(input_schema(tool)["properties"]) == len(offered) + len(PAGING)


def test_an_answer_is_the_command_s_own(root: Path) -> None:
    told = call("check", {"run": "runs/bad"}, [root])

    assert told["answer"] == json.loads(run("check", root / "runs" / "bad", "--json").out)
    assert (told["exit_code"], told["cut"]) == (1, [])


def test_every_kind_of_argument_reaches_the_command(root: Path) -> None:
    frames = call("show", {"run": "runs/bad", "frames": 2}, [root])
    ranks = call("show", {"run": "runs/bad", "ranks": True, "values": False}, [root])
    query = "select count(*) as n from readings where step = -1"
    rows = call("show", {"run": "runs/bad", "sql": query}, [root])
    several = call("headroom", {"run": "runs/bad", "format": ["bf16"], "phase": ["forward"]}, [root])

    assert len(frames["answer"]["frames"]["frames"]) == 2
    assert ranks["answer"]["schema"] == "hypocenter.show-ranks/1"
    assert rows["answer"]["sql"] == [{"n": 0}]
    assert several["answer"]["schema"] == "hypocenter.headroom/1"
    assert "bfloat16" in json.dumps(several["answer"])


def test_recordings_are_found_and_compared(root: Path) -> None:
    listed = call("runs", {"folder": "."}, [root])
    compared = call("diff", {"baseline": "runs/good", "candidate": str(root / "runs" / "bad")}, [root])

    assert {Path(one["path"]).name for one in listed["answer"]["runs"]} == {"good", "bad"}
    assert compared["answer"]["schema"] == "hypocenter.comparison/1"
    assert compared["exit_code"] in (1, 5)


def test_a_long_answer_comes_in_pages(root: Path) -> None:
    asked = {"run": "runs/bad", "sql": "select * from range(5000) as t(n)"}

    first = call("show", asked, [root])
    (cut,) = first["cut"]
    rest = call("show", {**asked, "at": cut["at"], "start": cut["start"]}, [root])

    assert len(json.dumps(first)) < 25_000
    assert rest["answer"][0] == {"n": cut["start"]}


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("chekc", {}, "no tool 'chekc'"),
        ("check", {}, "'run' is missing"),
        ("check", {"run": "runs/none"}, "no recording found"),
        ("check", {"run": "runs/bad", "format": "html"}, "no argument 'format'"),
        ("check", {"run": {"a": 1}}, "'run' is one text"),
        ("check", {"run": "runs/bad", "at": "/nothing"}, "the answer has no such part"),
        ("explain", {"name": "--help"}, "nothing is called '--help'"),
        ("explain", {"name": "overflw"}, "nothing is called"),
        ("show", {"run": "runs/bad", "step": "--json"}, "not a valid integer"),
        ("show", {"run": "runs/bad", "sql": "select * from read_text('/etc/hostname')"}, "the query failed"),
        ("diff", {"baseline": "runs/bad", "candidate": "runs/bad", "noise": ["../x"]}, "this may not be read"),
    ],
)
def test_an_error_is_one_sentence(root: Path, name: str, arguments: dict[str, object], words: str) -> None:
    with pytest.raises(HypocenterError) as raised:
        call(name, arguments, [root])

    assert words in sentence(raised.value)
    assert "\n" not in sentence(raised.value)


@pytest.mark.parametrize("text", ["..", "/", "/etc/passwd", "runs/../../x", "a\0b", "~/x", "link", "link/rank-00000"])
def test_nothing_outside_of_the_roots_is_read(root: Path, tmp_path: Path, text: str) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(root / "runs" / "bad")

    if text == "~/x":  # a folder of that name, as any other
        assert allowed(text, [inside]) == inside / "~" / "x"
        return
    with pytest.raises(OutsideError):
        allowed(text, [inside])


def test_a_recording_whose_files_lead_elsewhere_is_refused(root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    record(tmp_path / "open" / "r")
    (tmp_path / "open" / "r" / "rank-00000" / "notes").symlink_to(secret)

    with pytest.raises(OutsideError, match="may not be read"):
        allowed("r", [tmp_path / "open"])
    assert allowed("open/r", [tmp_path]) == tmp_path / "open" / "r"


def test_the_second_root_is_looked_in_too(root: Path, tmp_path: Path) -> None:
    assert allowed("runs/bad", [tmp_path, root]) == root / "runs" / "bad"


def test_no_tool_runs_what_a_recording_names() -> None:
    (cure,) = (tool for tool in TOOLS if tool.command == "cure")

    assert cure.fixed == ("--no-rerun",)
    assert isinstance(next(one for one in command_of(cure).params if one.name == "rerun"), click.Option)
