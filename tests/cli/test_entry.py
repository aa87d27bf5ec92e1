"""Errors become frames and exit codes; `--help` imports no command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from hypocenter import __version__, errors
from hypocenter.cli import group, main

SRC = Path(__file__).resolve().parents[2] / "src"
EVERY_ERROR = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.HypocenterError)]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of commands that takes the place of the real one."""
    import hypocenter.cli.commands as package

    monkeypatch.setattr(group, "COMMANDS", tmp_path)
    monkeypatch.setattr(package, "__path__", [str(tmp_path)])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]
    for path in tmp_path.glob("*.py"):
        if hasattr(package, path.stem):
            delattr(package, path.stem)


def add(folder: Path, name: str, body: str, doc: str = "What it does.") -> None:
    code = "import click\nfrom hypocenter import errors\n@click.command()\n@click.option('--loud', is_flag=True)\n"
    (folder / f"{name}.py").write_text(f'"""{doc}"""\n{code}def command(loud):\n    {body}\n')


def test_help_lists_every_file_and_imports_none(commands: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(commands, "zz_ship", "pass", "`hypocenter zz-ship RUN`: Ship a run.\n\nMore.\n")
    add(commands, "zzimport_", "pass", "HTML of a run")
    (commands / "zzbroken.py").write_text('"""Cannot be imported."""\nraise SystemError')
    (commands / "_private.py").write_text("")

    code = main(["--help"])

    rows = [line.split(maxsplit=1) for line in capsys.readouterr().out.partition("Around it:\n")[2].splitlines()]
    assert code == 0
    assert rows == [["zz-ship", "ship a run"], ["zzbroken", "cannot be imported"], ["zzimport", "HTML of a run"]]


def test_file_name_is_the_commands_name(commands: Path) -> None:
    add(commands, "zz_named", "return 40")
    add(commands, "zzfrom_", "return 41")

    assert [main(["zz-named"]), main(["zzfrom"])] == [40, 41]


@pytest.mark.parametrize(("body", "expected"), [("pass", 0), ("return 5", 5), ("return True", 0), ("return 'x'", 0)])
def test_what_a_command_returns_is_the_exit_code(commands: Path, body: str, expected: int) -> None:
    add(commands, "zzreturns", body)

    assert main(["zzreturns"]) == expected


@pytest.mark.parametrize("error", EVERY_ERROR)
def test_our_errors_are_shown_in_their_frame(
    commands: Path, capsys: pytest.CaptureFixture[str], error: type[errors.HypocenterError]
) -> None:
    add(commands, "zzfails", f"raise errors.{error.__name__}('no good', where='a.py', why='so', fix='type x')")

    code = main(["zzfails"])

    frame = f"error[{error.slug}]: no good\n  --> a.py\n   = why: so\n   = fix: type x\n"
    assert code == error.exit_code
    assert capsys.readouterr() == ("", frame)


def test_bug_of_ours_asks_for_a_report(
    commands: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add(commands, "zzbug", "{}['key']")
    monkeypatch.delenv("HYPOCENTER_TRACEBACK", raising=False)

    code = main(["zzbug", "--loud"])

    shown = capsys.readouterr().err
    assert code == 3
    assert shown.startswith("error[internal]: KeyError: 'key'\n  --> hypocenter zzbug --loud\n")
    assert "HYPOCENTER_TRACEBACK=1" in shown
    assert "Traceback" not in shown


def test_traceback_of_a_bug_is_shown_when_asked_for(
    commands: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add(commands, "zztrace", "{}['key']")
    monkeypatch.setenv("HYPOCENTER_TRACEBACK", "1")

    assert main(["zztrace"]) == 3
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "slug", "hint"),
    [
        (["zzshwo"], "unknown-name", "did you mean 'zzshow'?"),
        (["qqqq"], "unknown-name", "see `hypocenter --help` for all commands"),
        (["zzshow", "--lout"], "bad-option", "did you mean '--loud'?"),
        (["zzshow", "--qqqq"], "bad-option", "see `hypocenter zzshow --help` for all options"),
        (["--versoin"], "bad-option", "did you mean '--version'?"),
        (["zzshow", "too", "many"], "usage", "see `hypocenter zzshow --help`"),
    ],
)
def test_typo_exits_2_and_names_the_nearest(
    commands: Path, capsys: pytest.CaptureFixture[str], words: list[str], slug: str, hint: str
) -> None:
    add(commands, "zzshow", "pass")

    code = main(words)

    shown = capsys.readouterr().err.splitlines()
    assert code == 2
    assert shown[0].startswith(f"error[{slug}]: ")
    assert shown[-1] == f"   = fix: {hint}"


def test_interrupt_is_130(commands: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(commands, "zzwaits", "raise KeyboardInterrupt")

    assert main(["zzwaits"]) == 130
    assert capsys.readouterr().err.strip() == "interrupted"


def fresh(*words: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(SRC)}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True, env=env, timeout=60)


def test_version_by_module() -> None:
    assert fresh("-m", "hypocenter", "--version").stdout == f"hypocenter {__version__}\n"


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    code = f"import sys; from hypocenter.cli import main; main({words!r}); print(*sorted(sys.modules))"

    loaded = set(fresh("-c", code).stdout.splitlines()[-1].split())

    assert loaded.isdisjoint({"torch", "duckdb", "rich", "jinja2", "pyarrow", "numpy", "safetensors"})


def test_every_command_has_a_line_of_help() -> None:
    names = group.hypocenter.list_commands(click.Context(group.hypocenter))

    assert "run" in names
    assert [name for name in names if not group.one_line_help(name)] == []
