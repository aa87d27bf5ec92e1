"""A program that runs in a fork of the server sees what it would see in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import warm
from warm_client import ask, said

SAYS = """
import json, os, sys
print(json.dumps({
    "name": __name__, "file": __file__, "argv": sys.argv, "path": sys.path[0], "folder": os.getcwd(),
    "environment": sorted(n for n in os.environ if n not in ("_", "LC_CTYPE")),
    "main": sys.modules["__main__"].__file__, "stdin": sys.stdin.read(),
    "defined": sorted(n for n in globals() if not n.startswith("__")),
}))
print("to stderr", file=sys.stderr)
sys.exit(3)
"""
RANK = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.tensor([float(os.environ["RANK"])])
dist.all_reduce(x)
if os.environ["LOCAL_RANK"] == "1":
    print(x.item(), os.environ["WORLD_SIZE"])
dist.destroy_process_group()
"""
TORCHRUN = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2"]


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        (tmp_path / "program.py").write_text(text)
        return "program.py"

    return write


def test_a_script_sees_what_it_would_see_in_a_process_of_its_own(script, tmp_path: Path) -> None:
    command = [sys.executable, script(SAYS), "--option", "a b"]
    env = {"PATH": os.environ["PATH"], "EXTRA": "1"}

    ours = warm.run(command, env=env, cwd=tmp_path, timeout=300)
    real = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    assert json.loads(ours.stdout) == json.loads(real.stdout)
    assert (ours.returncode, ours.stderr) == (real.returncode, real.stderr) == (3, "to stderr\n")


def test_an_error_and_a_signal_end_it_as_they_would(script, tmp_path: Path) -> None:
    failed = warm.run([sys.executable, script("1 / 0")], env={}, cwd=tmp_path, timeout=300)
    killed = warm.run([sys.executable, script("import os\nos.kill(os.getpid(), 9)")], env={}, cwd=tmp_path, timeout=300)

    assert failed.returncode == 1
    assert failed.stderr.rstrip().endswith("ZeroDivisionError: division by zero")
    assert killed.returncode == -9


def test_it_ends_as_a_process_of_its_own_does(script, tmp_path: Path) -> None:
    text = """
import atexit, sys, threading, time

left_open = open("left open", "w")
left_open.write("written")
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.2), print("a thread"))).start()
sys.excepthook = lambda kind, value, trace: print("told", kind.__name__)
raise {}
"""
    for error, code in (
        ("SystemExit('a word')", 1),
        ("SystemExit(300)", 300 & 0xFF),
        ("OSError", 1),
        ("SystemExit", 0),
    ):
        command = [sys.executable, script(text.format(error))]
        ours = warm.run(command, env={}, cwd=tmp_path, timeout=300)
        written = (tmp_path / "left open").read_text()
        (tmp_path / "left open").unlink()
        real = subprocess.run(command, env={}, cwd=tmp_path, capture_output=True, text=True)

        assert (ours.returncode, ours.stdout, ours.stderr) == (real.returncode, real.stdout, real.stderr)
        assert (ours.returncode, written) == (code, (tmp_path / "left open").read_text()) == (code, "written")


def test_nothing_that_a_watched_program_always_needs_is_imported_after_the_fork(script, tmp_path: Path) -> None:
    text = """
import sys
import torch
before = set(sys.modules)
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(), torch.nn.Linear(2, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.full((1, 2), float("nan") if step == 2 else 1.0)).sum().backward()
    optimizer.step()
sys.stdout.write("\\n".join(sys.modules.keys() - before))
"""
    run = [sys.executable, "-m", "hypocenter", "run", "--out", "r", "--level", "tensors", "--audit", "every=1"]
    done = warm.run([*run, script(text)], env={}, cwd=tmp_path, timeout=300)

    assert json.loads((tmp_path / "r" / "diagnosis.json").read_text())["status"] == "findings", done.stderr
    assert [name for name in done.stdout.split() if not name.startswith("hypocenter.tap.frameworks.")] == []


def test_a_text_sees_what_it_would_see_in_a_process_of_its_own(tmp_path: Path) -> None:
    text = "import sys; print(sys.argv, sys.path[0], __name__, '__file__' in globals(), 'torch' in sys.modules)"
    command = [sys.executable, "-c", text + "; import torch", "x", "-y"]

    forked = warm.run(command, env=dict(os.environ), cwd=tmp_path, timeout=300)
    alone = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)

    assert forked.returncode == 0, forked.stderr
    assert forked.stdout == alone.stdout.replace("False\n", "True\n")  # it has torch already, which is the point


def test_a_module_sees_what_it_would_see_in_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "program.py").write_text(SAYS.replace("__name__,", "__name__ + __spec__.name,"))
    command = [sys.executable, "-m", "package.program", "x", "-y"]

    forked = warm.run(command, env={"PATH": os.environ["PATH"]}, cwd=tmp_path, timeout=300)
    alone = subprocess.run(
        command, env={"PATH": os.environ["PATH"]}, cwd=tmp_path, capture_output=True, stdin=subprocess.DEVNULL
    )

    assert json.loads(forked.stdout) == json.loads(alone.stdout)
    assert forked.returncode == alone.returncode == 3


def test_what_runs_too_long_is_ended_and_the_next_one_runs(script, tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        warm.run([sys.executable, script("while True: pass")], env={}, cwd=tmp_path, timeout=0.5)

    assert warm.run([sys.executable, script("print(1)")], env={}, cwd=tmp_path, timeout=300).stdout == "1\n"


def test_ranks_meet_and_one_that_fails_ends_the_others(script, tmp_path: Path) -> None:
    met = warm.run([*TORCHRUN, script(RANK)], env={}, cwd=tmp_path, timeout=300)
    failing = "import os, time\nif os.environ['RANK'] == '0': raise SystemExit(7)\ntime.sleep(600)"
    failed = warm.run([*TORCHRUN, script(failing)], env={}, cwd=tmp_path, timeout=300)

    assert (met.returncode, met.stdout) == (0, "1.0 2\n")
    assert failed.returncode == 1


def test_hypocenter_run_records_a_forked_program(script, tmp_path: Path) -> None:
    text = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
raise SystemExit(5)
"""
    done = warm.run(
        [sys.executable, "-m", "hypocenter", "run", "--out", "r", script(text)], env={}, cwd=tmp_path, timeout=300
    )

    assert done.returncode == 5, done.stderr
    assert "in 3 steps" in done.stderr
    assert json.loads((tmp_path / "r" / "run.json").read_text())["exit_code"] == 5


def test_any_other_command_is_run_too(tmp_path: Path) -> None:
    assert warm.run(["/bin/echo", "said"], env={}, cwd=tmp_path, timeout=300).stdout == "said\n"


def test_lines_of_several_ranks_are_never_mixed(script, tmp_path: Path) -> None:
    program = script("import os\nfor _ in range(1000): print('rank', os.environ['RANK'], flush=True)")

    done = warm.run([*TORCHRUN, program], env={"PATH": os.environ["PATH"]}, cwd=tmp_path, timeout=300)

    assert set(done.stdout.splitlines()) == {"rank 0", "rank 1"}


def test_the_program_of_who_hangs_up_is_ended(script, tmp_path: Path) -> None:
    request = {"argv": [sys.executable, script("while True: pass")], "env": {}, "cwd": str(tmp_path)}
    with ask(warm.place_of(sys.executable), request, [0, 1, 2]) as server:
        pid = int(said(server))
        os.kill(pid, 0)

    assert ended(pid)


def test_a_server_ends_with_its_stdin_and_ends_what_runs(script, tmp_path: Path) -> None:
    text = f"import sys; sys.path.append({str(warm.SERVER.parent)!r}); import server; server._prepare = lambda: None; "
    argv = [sys.executable, "-c", text + "server._leave = print; server.main('s')"]
    life, place = subprocess.PIPE, str(tmp_path / "s")
    with subprocess.Popen(argv, cwd=tmp_path, stdin=life, stdout=subprocess.PIPE, bufsize=0) as begun:
        assert begun.stdout.readline() == b"ready\n"
        with ask(place, {"argv": ["/bin/sleep", "600"], "env": {}, "cwd": "/"}, [0, 1, 2]) as server:
            pid = int(said(server))
            begun.stdin.close()
            assert (begun.wait(300), ended(pid)) == (0, True)


def ended(pid: int) -> bool:
    """Wait until it has; of what nobody waited for no command line is left."""
    with contextlib.suppress(OSError):
        while Path(f"/proc/{pid}/cmdline").read_bytes():
            time.sleep(0.01)
    return True


def test_a_name_on_path_stands_for_a_program_in_a_fork(script, tmp_path: Path) -> None:
    text = """
import os, signal, sys
assert 'torch' in sys.modules
print(sys.argv[1:], os.getcwd(), os.environ["WORD"], sys.stdin.read(), end="")
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGTERM)
sys.exit(7)
"""
    program = warm.link(tmp_path / "program", [sys.executable, str(tmp_path / script(text))])
    given = {"cwd": tmp_path, "env": {"PATH": os.environ["PATH"], "WORD": "w"}, "capture_output": True, "text": True}

    left = subprocess.run(["sh", "-c", f"echo x | {program} 'a b' | cat; echo y | {program} c"], **given)
    killed = subprocess.run([program, "killed"], input="", **given)

    assert (left.returncode, left.stdout) == (7, f"['a b'] {tmp_path} w x\n['c'] {tmp_path} w y\n")
    assert killed.returncode == -signal.SIGTERM
