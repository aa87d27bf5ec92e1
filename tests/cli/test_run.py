"""`hypocenter run` leaves the program its stdin, stdout, arguments, signals and exit code."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from hypocenter.cli import main
from hypocenter.cli.child import Ended
from hypocenter.cli.commands import run as run_command
from hypocenter.cli.commands.check import SEVERITIES, exit_code
from hypocenter.nouns import Diagnosis, Finding
from hypocenter.record.layout import rank_directory

SRC = Path(__file__).resolve().parents[2] / "src"
SECONDS = 60  # no test waits that long unless it has failed

COUNTS_SIGNALS = """
import os, signal, sys
def say(text):  # not print: a handler that comes while print is writing may not print itself
    os.write(1, f"{text}\\n".encode())
counts = dict.fromkeys(sys.argv[1].split(","), 0)
def count(number, frame):
    counts[signal.Signals(number).name] += 1
    say("counted")
def end(number, frame):
    say(counts)
    os._exit(9)
for name in counts:
    signal.signal(getattr(signal, name), count)
signal.signal(signal.SIGUSR2, end)
say("ready")
while True:
    signal.pause()
"""


def environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HYPOCENTER_")}
    return kept | {"PYTHONPATH": str(SRC), "TERM": "dumb"}


def hypocenter_run(
    *words: str, cwd: Path, stdin: bytes = b"", python: Sequence[str] = (sys.executable,)
) -> subprocess.CompletedProcess[bytes]:
    command = [*python, "-m", "hypocenter", "run", "--out", "r", *words]
    return subprocess.run(
        command, input=stdin, capture_output=True, cwd=cwd, env=environment(), timeout=SECONDS, check=False
    )


def started(*words: str, cwd: Path, **kwargs: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hypocenter", "run", "--out", "r", *words]
    ours = {"stdout": subprocess.PIPE, "preexec_fn": _heed_interrupts}
    return subprocess.Popen(command, cwd=cwd, env=environment(), text=True, **(ours | kwargs))


def _heed_interrupts() -> None:
    """A shell makes its background jobs ignore SIGINT, and children inherit that: not in these tests."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str, name: str = "train.py") -> str:
        (tmp_path / name).write_text(text)
        return name

    return write


# exit codes


@pytest.mark.parametrize("code", [0, 1, 3, 137, 255])
def test_exit_code_passes_through(tmp_path: Path, script: Callable[[str], str], code: int) -> None:
    done = hypocenter_run(script(f"import sys; sys.exit({code})"), cwd=tmp_path)

    run = json.loads((tmp_path / "r" / "run.json").read_text())
    assert done.returncode == code
    assert run["exit_code"] == code
    assert run["status"] == ("failed" if code else "finished")


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT", "SIGINT", "SIGPIPE"])
def test_death_by_a_signal_is_ours_too(tmp_path: Path, script: Callable[[str], str], name: str) -> None:
    number = getattr(signal, name)
    text = f"import os, signal; signal.signal({number}, signal.SIG_DFL)" if name != "SIGKILL" else "import os"

    done = hypocenter_run(script(f"{text}; os.kill(os.getpid(), {number})"), cwd=tmp_path)

    run = json.loads((tmp_path / "r" / "run.json").read_text())
    assert done.returncode == -number
    assert (run["status"], run["exit_code"]) == ("killed", 128 + number)


def test_exception_of_the_program_is_shown_as_ever(tmp_path: Path, script: Callable[[str], str]) -> None:
    done = hypocenter_run(script("raise ValueError('mine')"), cwd=tmp_path)

    assert done.returncode == 1
    assert b"ValueError: mine\n" in done.stderr
    assert b"hypocenter/" not in done.stderr


# what the program is given


def test_stdin_and_stdout_pass_byte_for_byte(tmp_path: Path, script: Callable[[str], str]) -> None:
    data = bytes(range(256)) * 300

    done = hypocenter_run(
        script("import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"), cwd=tmp_path, stdin=data
    )

    assert done.stdout == data


def test_words_after_program_are_the_programs(tmp_path: Path, script: Callable[[str], str]) -> None:
    words = ["--level", "modules", "--out=x", "-m", "a b", "", "--", "-h", "--help", "ä\n", "--no-such"]

    done = hypocenter_run(
        "--level", "ops", script("import sys, json; print(json.dumps(sys.argv))"), *words, cwd=tmp_path
    )

    run = json.loads((tmp_path / "r" / "run.json").read_text())
    assert json.loads(done.stdout) == ["train.py", *words]
    assert run["config"]["level"] == "ops"
    assert run["command"] == ["train.py", *words]


def test_module_begins_the_program(tmp_path: Path, script: Callable[[str], str]) -> None:
    (tmp_path / "package").mkdir()
    script("import sys; print(__name__, sys.argv[1:])", "package/train.py")

    done = hypocenter_run("-m", "package.train", "--level", "7", "-x", cwd=tmp_path)

    assert done.stdout == b"__main__ ['--level', '7', '-x']\n"


@pytest.mark.parametrize("words", [["python", "train.py"], ["bash", "-c", "python train.py"], ["--", "train.py"]])
def test_program_is_this_environments_python(tmp_path: Path, script: Callable[[str], str], words: list[str]) -> None:
    script("import sys; print(sys.prefix)")
    search = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}

    done = subprocess.run(
        [sys.executable, "-m", "hypocenter", "run", *words], cwd=tmp_path, env=environment() | search, check=True,
        capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip

    assert done.stdout.strip() == sys.prefix


def test_environment_differs_by_what_recording_needs_only(tmp_path: Path, script: Callable[[str], str]) -> None:
    text = "import os, json; print(json.dumps(dict(os.environ)))"

    done = hypocenter_run(script(text), cwd=tmp_path)

    after, before = json.loads(done.stdout), environment()
    changed = {key for key in after.keys() | before.keys() if after.get(key) != before.get(key)}
    assert changed - {"PWD", "LC_CTYPE"} == {"PYTHONPATH", "HYPOCENTER_RUN", "HYPOCENTER_CONFIG"}
    assert after["PYTHONPATH"].endswith(os.pathsep + before["PYTHONPATH"])
    assert after["HYPOCENTER_RUN"] == str(tmp_path / "r")


def test_no_pythonpath_does_not_become_the_working_directory() -> None:
    made = run_command.environment({}, Path("/r"), run_command.Config())

    assert made["PYTHONPATH"] == str(SRC / "hypocenter" / "boot" / "shim")


def test_open_files_and_signal_mask_pass(tmp_path: Path, script: Callable[[str], str]) -> None:
    text = "import os, signal; print(os.read(int(os.environ['FD']), 9), signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    readable, writable = os.pipe()
    os.write(writable, b"inherited")

    done = subprocess.run(
        [sys.executable, "-m", "hypocenter", "run", script(text)], cwd=tmp_path, pass_fds=[readable],
        env=environment() | {"FD": str(readable)}, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip

    os.close(readable)
    os.close(writable)
    assert done.stdout == "b'inherited' set()\n"


# signals


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGQUIT"])
def test_signal_to_us_reaches_the_program_once(tmp_path: Path, script: Callable[[str], str], name: str) -> None:
    process = started(script(COUNTS_SIGNALS), name, cwd=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"

    process.send_signal(getattr(signal, name))
    assert process.stdout.readline() == "counted\n"
    process.send_signal(signal.SIGUSR2)

    assert process.stdout.read() == f"{{'{name}': 1}}\n"
    assert process.wait(timeout=SECONDS) == 9


def test_ctrl_c_reaches_the_program_once_and_we_wait(tmp_path: Path, script: Callable[[str], str]) -> None:
    terminal, theirs = pty.openpty()
    process = started(
        script(COUNTS_SIGNALS), "SIGINT", cwd=tmp_path, stdin=theirs, stderr=subprocess.PIPE, start_new_session=True,
        preexec_fn=lambda: (_heed_interrupts(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)),
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"

    os.write(terminal, b"\x03")
    assert process.stdout.readline() == "counted\n"
    process.send_signal(signal.SIGUSR2)  # we take SIGINT first, so a second one would be counted before the end

    assert process.stdout.read() == "{'SIGINT': 1}\n"
    assert process.wait(timeout=SECONDS) == 9
    os.close(terminal)
    os.close(theirs)


def test_signal_that_the_program_dies_of(tmp_path: Path, script: Callable[[str], str]) -> None:
    process = started(script("print('ready', flush=True)\nimport signal\nsignal.pause()"), cwd=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"

    process.terminate()

    assert process.wait(timeout=SECONDS) == -signal.SIGTERM
    assert json.loads((tmp_path / "r" / "run.json").read_text())["status"] == "killed"


# what cannot be run


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["trian.py"], "did you mean 'train.py'?"),
        (["--levle", "ops", "train.py"], "did you mean '--level'?"),
        (["--level", "op", "train.py"], "did you mean 'ops'?"),
        (["--trace-batches", "1,x", "train.py"], "option 'trace_batches' cannot be ['1', 'x']"),
        (["--schedule", "evry=3", "train.py"], "schedule 'evry=3' is not understood"),
        (["--sink", "consol", "train.py"], "did you mean 'console'?"),
        (["no-such-program"], "no program 'no-such-program'"),
        (["./data.txt"], "it is not executable"),
        (["./nowhere/launch"], "there is no such file"),
        (["--level"], "requires an argument"),
        (["--level", "ops"], "missing argument"),
        (["./broken"], "the program cannot be started"),
    ],
)
def test_what_cannot_be_run_exits_2_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "data.txt").touch()
    (tmp_path / "broken").write_text("#!/no/such/interpreter\n")
    (tmp_path / "broken").chmod(0o755)

    code = main(["run", *words])

    captured = capsys.readouterr()
    assert code == 2
    assert says in captured.err
    assert captured.err.splitlines()[-1].startswith("   = fix: ")
    assert captured.out == ""


def test_recording_is_not_overwritten_unless_forced(tmp_path: Path, script: Callable[[str], str]) -> None:
    name = script("print('trained')")
    first = hypocenter_run(name, cwd=tmp_path)

    again, forced = hypocenter_run(name, cwd=tmp_path), hypocenter_run("--force", name, cwd=tmp_path)

    assert (first.returncode, again.returncode, forced.returncode) == (0, 2, 0)
    assert again.stdout == b""
    assert b"error[already-exists]" in again.stderr


# after the program


def test_nothing_recorded_is_said_with_a_hint(tmp_path: Path, script: Callable[[str], str]) -> None:
    done = hypocenter_run(script("pass"), cwd=tmp_path)

    assert done.returncode == 0
    assert b"note: nothing was recorded: no process imported torch or mindspore\n   = hint: " in done.stderr


def test_torch_imported_but_nothing_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / run_command.REACHED_FILE).write_text("17\n18\n")

    code = run_command._after(tmp_path, Ended(code=0), None)

    assert code == 0
    assert "2 processes imported torch or mindspore, but no step was finished" in capsys.readouterr().err
    assert not (tmp_path / run_command.REACHED_FILE).exists()


@pytest.mark.parametrize(
    ("worst", "fail_on", "program", "expected"),
    [
        ("error", None, 0, 0),
        ("error", "error", 0, 1),
        ("warning", "error", 0, 0),
        ("warning", "warning", 0, 1),
        ("note", "warning", 0, 0),
        ("note", "note", 0, 1),
        (None, "note", 0, 0),
        ("cannot tell", None, 0, 0),
        ("cannot tell", "error", 0, 5),
        ("error", "error", 3, 3),
    ],
)
def test_fail_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worst: str | None, fail_on: str | None, program: int, expected: int
) -> None:
    rank_directory(tmp_path, 0).mkdir()
    known = [s for s in SEVERITIES if s == worst]
    findings = [Finding(code="HC1", kind="nonfinite", severity=s, title="", step=0) for s in known]
    diagnosis = Diagnosis(findings=tuple(findings), status="cannot-tell" if worst == "cannot tell" else "findings")
    fake = SimpleNamespace(finish=lambda directory, stream: diagnosis, exit_code=exit_code)
    monkeypatch.setitem(sys.modules, "hypocenter.cli.commands.check", fake)

    assert run_command._after(tmp_path, Ended(code=program), fail_on) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(("fail_on", "program", "expected"), [(None, 0, 0), ("error", 0, 5), ("error", 7, 7)])
def test_diagnosis_that_fails_is_one_warning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fail_on: str | None,
    program: int,
    expected: int,
) -> None:
    rank_directory(tmp_path, 0).mkdir()
    monkeypatch.setitem(sys.modules, "hypocenter.cli.commands.check", SimpleNamespace(finish=None, exit_code=None))

    code = run_command._after(tmp_path, Ended(code=program), fail_on)  # type: ignore[arg-type]

    assert code == expected
    assert capsys.readouterr().err.startswith("warning: the diagnosis could not be made: TypeError")


def test_nothing_recorded_is_no_pass_when_findings_were_asked_for(tmp_path: Path) -> None:
    assert run_command._after(tmp_path, Ended(code=0), "error") == 4


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--schedule", "every=10"], "--schedule has"),
        (["--site", "layers.*", "--sketch"], "--sites, --sketch have"),
        (["--schedule", "every=10", "--level", "modules"], None),
        (["--trace-batches", "1", "--site", "layers.*"], None),
        ([], None),
    ],
    ids=str,
)
def test_an_option_without_effect_is_refused(
    tmp_path: Path, script: Callable[[str], str], words: list[str], named: str | None
) -> None:
    done = hypocenter_run(*words, script("pass"), cwd=tmp_path)

    assert done.returncode == (0 if named is None else 2)
    assert named is None or f"error[bad-option]: {named} no effect at level sentinel".encode() in done.stderr
