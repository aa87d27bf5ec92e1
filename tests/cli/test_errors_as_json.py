"""Whoever asks for JSON gets JSON, also when there is no answer."""

from __future__ import annotations

import json
from pathlib import Path

import click
import jsonschema
import pytest
from recordings import Said, record, run

from hypocenter.cli import entry, hypocenter
from hypocenter.json_answer import published


def commands_with_json() -> list[tuple[str, ...]]:
    """Every command, also of a group, that has --json."""

    def walk(command: click.Command, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        if isinstance(command, click.Group):
            context = click.Context(command)
            names = command.list_commands(context)
            return [found for name in names if (child := command.get_command(context, name)) is not None
                    for found in walk(child, (*path, name))]  # fmt: skip
        return [path] if any("--json" in p.opts for p in command.params) else []

    return walk(hypocenter, ())


def answer(said: Said) -> dict[str, str]:
    """The JSON on stdout, checked against the schema; stderr has the same words."""
    found = json.loads(said.out)
    jsonschema.validate(found, published(entry.ErrorAnswer))
    assert said.err.startswith(f"error[{found['slug']}]: {found['what']}\n")
    return found


@pytest.mark.parametrize("words", commands_with_json(), ids=" ".join)
def test_an_unknown_option_is_told_as_json_by_every_command(words: tuple[str, ...]) -> None:
    said = run(*words, "--jsno", "--json")

    assert said.code == 2
    assert answer(said)["slug"] == "bad-option"


@pytest.mark.parametrize(
    ("words", "slug", "code"),
    [
        (["check", "nope"], "no-recording", 4),
        (["check", "nope", "--format", "json"], "no-recording", 4),
        (["check", "nope", "--format=json"], "no-recording", 4),
        (["show", "nope"], "no-recording", 4),
        (["show", "."], "no-recording", 4),
        (["show", "good", "--step", "two"], "usage", 2),
        (["show", "good", "--frames", "0"], "usage", 2),
        (["show", "good", "--sql", "selct"], "bad-query", 2),
        (["show", "good", "--diary"], "bad-option", 2),
        (["report", "nope"], "no-recording", 4),
        (["diff", "good", "nope"], "no-recording", 4),
        (["diff", "good"], "usage", 2),
        (["diff", "good", "good", "--budget", "much"], "bad-option", 2),
        (["diff", "good", "good", "--write-map", "no/such/folder.toml"], "bad-option", 2),
        (["headroom", "nope"], "no-recording", 4),
        (["cure", "nope"], "no-recording", 4),
        (["isolate", "good", "nope"], "no-recording", 4),
        (["explain", "HC999"], "unknown-name", 2),
        (["weights", "diff", "nope", "nope"], "bad-checkpoint", 4),
        (["checklist", "nope", "nope"], "bad-configuration", 4),
        (["curves", "nope", "nope"], "no-recording", 4),
        (["align", "nope"], "bad-option", 2),
        (["determinism"], "bad-option", 2),
        (["run", "--json", "nope.py"], "bad-option", 2),
        (["shwo", "good"], "unknown-name", 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_an_error_is_told_as_json(
    words: list[str], slug: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record(tmp_path / "good", fails=False)
    asked = words if any("json" in word for word in words) else [*words, "--json"]

    said = run(*asked)

    assert said.code == code
    assert answer(said)["slug"] == slug


def test_a_newer_recording_is_told_as_json(tmp_path: Path) -> None:
    path = record(tmp_path / "run")
    file = path / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 99}))

    said = run("show", path, "--json")

    assert said.code == 4
    assert answer(said)["slug"] == "corrupt-recording"


def test_a_bug_of_ours_is_told_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise KeyError("key")

    monkeypatch.setattr("hypocenter.cli.commands.show.open_run", fails)

    said = run("show", tmp_path, "--json")

    assert said.code == 3
    assert answer(said)["what"] == "KeyError: 'key'"


@pytest.mark.parametrize("name", ["run", "determinism"])
def test_json_of_the_program_is_not_asked_of_us(name: str) -> None:
    said = run(name, "nope.py", "--json")

    assert (said.code, said.out) == (2, "")


def test_without_json_stdout_stays_empty() -> None:
    assert run("show", "nope").out == ""
