"""Every reading command in every format: well-formed, and nothing of a recording is read as markup."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser

import jsonschema
import numpy as np
import pytest
from commanded import log, recorded, side
from recordings import record, run
from safetensors.numpy import save_file

from hypocenter.cli.commands import doctor
from hypocenter.cli.commands.schema import ANSWERS, schema_of
from hypocenter.compare.isolation.isolated import Isolated, Isolation
from hypocenter.doctor.machine import Machine
from hypocenter.report.answer.rendering import FORMATS, render
from hypocenter.twins.answer import Place, Restored, Twin

PLAN = '[baseline]\ncommand = "python a.py"\n[candidate]\ncommand = "python b.py"\n'
VOID = {"meta", "br", "wbr", "hr", "img", "input", "link", "path", "line", "rect", "circle"}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[object, ...]]:
    """A command line for each command that reads something."""
    folder = tmp_path_factory.mktemp("answers")
    good, bad = record(folder / "good", fails=False), record(folder / "bad")
    for name, value in (("one", 1.0), ("other", 2.0)):
        save_file({"a|b.<b>weight": np.full((2, 3), value, np.float32)}, folder / f"{name}.safetensors")
    (folder / "plan.toml").write_text(PLAN)
    repeats = [word for name in "ab" for word in ("--recorded", recorded(folder / name, ord(name)))]
    return {
        "check": (bad,),
        "report": (bad, "-o", "-"),
        "diff": (good, bad),
        "diff --values": (good, bad, "--values"),
        "diff of logs": (log(folder / "one.csv"), log(folder / "other.csv", 0.5)),
        "curves": (log(folder / "one.csv"), log(folder / "other.csv", 0.5)),
        "weights diff": (folder / "one.safetensors", folder / "other.safetensors"),
        "headroom": (bad, "--format", "fp8_e4m3fn"),
        "checklist": (side(folder / "x"), side(folder / "y", training={"learning_rate": 1e-3})),
        "determinism": (*repeats,),
        "doctor": ("--no-arithmetic",),
        "align status": (folder / "plan.toml",),
        "cure": (good,),
        "runs": (folder,),
        "spikes": (good,),
        "show": (bad,),
        "show --values": (bad, "--values"),
        "show --frames": (bad, "--frames", 3),
        "explain": ("HC101",),
    }


@pytest.fixture(autouse=True)
def a_machine_without_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "this_machine", lambda **_: Machine())


COMMANDS = (
    "check", "report", "diff", "diff --values", "diff of logs", "curves", "weights diff", "headroom", "checklist",
    "determinism", "doctor", "align status", "cure", "runs", "spikes", "show", "show --values", "show --frames",
    "explain",
)  # fmt: skip


def ask(words: dict[str, tuple[object, ...]], command: str, *more: object):
    names = [name for name in command.split() if name not in ("of", "logs", "--values", "--frames")]
    return run(*names, *words[command], *more)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_format_is_well_formed(words, command):
    said = {name: ask(words, command, "--format", name) for name in FORMATS}

    assert len({one.code for one in said.values()}) == 1, {name: one.err for name, one in said.items()}
    assert said["terminal"].code in (0, 1, 5)
    assert all(one.out.endswith("\n") for name, one in said.items() if name != "html")
    if command not in ("report", "check"):
        assert ask(words, command, "--json").out == said["json"].out
    _check_json(json.loads(said["json"].out, parse_constant=pytest.fail))
    _check_html(said["html"].out)
    assert re.match(r"# |\*\*", said["markdown"].out)
    assert "<b>" not in said["markdown"].out
    assert all(re.match(r"::(error|warning|notice) .*title=.*::.", line) for line in said["github"].out.splitlines())


@pytest.mark.parametrize("name", FORMATS[1:])
def test_a_twin_has_every_format(name: str) -> None:
    place = Place(step=9, phase="param", site="a|<b>")
    state = Restored(what="parameters", verdict="differs", n=2, n_equal=1, first="a|<b>")
    twin = Twin(status="differs", sentence="differs: <b>", change="resume", first=place, restored=(state,))

    said = render("twin", twin, name)

    assert "differs: " in said
    if name == "json":
        _check_json(json.loads(said))
    if name == "html":
        _check_html(said)


@pytest.mark.parametrize("name", ["html", "markdown", "github"])
def test_any_answer_has_a_rendering(name):
    module = Isolated(site="a|<b>", candidate_site="a", kind="Linear", port="out[0]", verdict="own", error=1.0)
    found = render("isolate", Isolation(status="diverged", sentence="diverged: <b>", modules=(module,)), name)

    assert "Infinity" in found
    assert ("a|<b>" in found) == (name == "github")


def test_an_unknown_format_is_an_error_also_of_logs(words):
    said = ask(words, "curves", "--format", "jsn")
    of_logs = ask(words, "diff of logs", "--format", "sarif")

    assert (said.code, of_logs.code) == (2, 2)
    assert "there are terminal, json, html, markdown, github" in of_logs.err


def test_an_error_is_json_where_json_was_asked_for(tmp_path):
    said = run("weights", "diff", tmp_path / "none", tmp_path / "none", "--format", "json")

    _check_json(json.loads(said.out))
    assert said.code == 4


@pytest.mark.parametrize("name", ANSWERS)
def test_a_schema_is_one(name):
    said = run("schema", name)

    jsonschema.Draft202012Validator.check_schema(json.loads(said.out))
    assert schema_of(f"hypocenter.{name}/1")["title"] == f"hypocenter.{name}/1"
    assert run("schema", f"{name}x").code == 2


def _check_json(answer: dict[str, object]) -> None:
    name = str(answer["schema"]).removeprefix("hypocenter.").removesuffix("/1")
    assert name in ANSWERS or name.startswith(("show-", "manual"))
    if name in ANSWERS:
        jsonschema.validate(answer, schema_of(name), cls=jsonschema.Draft202012Validator)


def _check_html(text: str) -> None:
    """Tags that end in order, a policy that forbids all loading, and no markup that came from data."""
    open_tags: list[str] = []
    seen: set[str] = set()

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            seen.add(tag)
            if tag not in VOID:
                open_tags.append(tag)

        def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            seen.add(tag)

        def handle_endtag(self, tag: str) -> None:
            if tag not in VOID:
                assert open_tags.pop() == tag

    Reader().feed(text)
    assert not open_tags
    assert {"html", "title", "body", "h1"} <= seen
    assert "default-src 'none'" in unescape(text)
