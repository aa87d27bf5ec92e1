"""Every option of the config is a flag, with help, and means the same there."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from hypocenter.cli.config_options import HELP, config_options, given
from hypocenter.config import Config, resolve


def typed(*words: str) -> Config:
    """What a command with these flags resolves to."""
    caught: dict[str, Any] = {}

    @click.command()
    @config_options
    def command(**values: Any) -> None:
        caught.update(given(values))

    result = CliRunner().invoke(command, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return resolve(flags=caught)


@pytest.fixture(autouse=True)
def _nothing_else_is_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for name in fields(Config):
        monkeypatch.delenv(f"HYPOCENTER_{name.name.upper()}", raising=False)


def test_every_field_has_help_and_nothing_else_does() -> None:
    assert list(HELP) == [field.name for field in fields(Config)]


def test_no_flag_is_every_default() -> None:
    assert typed() == Config()


@pytest.mark.parametrize(
    ("words", "field", "expected"),
    [
        (["--level", "ops"], "level", "ops"),
        (["--schedule=0,5-8"], "schedule", "0,5-8"),
        (["--param-schedule", "never"], "param_schedule", "never"),
        (["--site", "a.*", "--site", "b"], "sites", ("a.*", "b")),
        (["--sites", "a,b"], "sites", ("a", "b")),
        (["--exclude", "c"], "exclude", ("c",)),
        (["--trace-batches", "1,3"], "trace_batches", (1, 3)),
        (["--stop-after-batch", "0"], "stop_after_batch", 0),
        (["--frames", "0"], "frames", 0),
        (["--sketch"], "sketch", True),
        (["--no-replay"], "replay", False),
        (["--on-finding", "skip"], "on_finding", "skip"),
        (["--histogram", "full"], "histogram", "full"),
        (["--out", "r"], "out", "r"),
        (["--force"], "force", True),
        (["--sink", "console"], "sinks", ("console",)),
        (["--plugin", "a", "--plugin", "b.c"], "plugins", ("a", "b.c")),
    ],
)
def test_flag_sets_its_field(words: list[str], field: str, expected: object) -> None:
    config = typed(*words)

    assert getattr(config, field) == expected
    changed = {f.name for f in fields(Config) if getattr(config, f.name) != getattr(Config(), f.name)}
    assert changed == {field}


def test_flag_that_is_not_typed_leaves_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPOCENTER_REPLAY", "false")
    monkeypatch.setenv("HYPOCENTER_SITES", "a,b")

    config = typed("--level", "ops")

    assert (config.level, config.replay, config.sites) == ("ops", False, ("a", "b"))


def test_page_of_commands_tells_every_flag_with_its_help() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")

    told = "".join(page.split())  # lines are broken at hyphens too
    assert [text for text in HELP.values() if "".join(text.split()) not in told] == []
