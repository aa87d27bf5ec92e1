"""A Python that has imported torch (or MindSpore) and Hypocenter, and forks a child for each program that is asked for.

    python tests/processes/server.py PLACE

Imports are what a short run mostly consists of: 2 to 4 s of it, of `hypocenter run` under torchrun 10. Requests come
over PLACE, a Unix socket: one JSON object a line (argv, env, cwd) with the three streams of the program; the answers
are its process id and, when it has ended, its exit code (-N for signal N). Whoever hangs up ends it. The server ends
with its stdin. Understood, and run here, are

    python SCRIPT ..., python -c TEXT ..., python -m .. the script, the text or the module, as `__main__`
    python -m hypocenter ...                            our command; the program of `run` then in a fork too
    torchrun --standalone --nproc-per-node N SCRIPT ... ranks by fork, the first that fails ends the others
    torchrun ...                                        torchrun itself, which has its ranks from this server

where a link to a SCRIPT.py is that script; and any other command becomes what it names, by exec. Everything of a
process but its imports is as it would be: arguments, environment, folder, streams, `__main__`, signals, threads and
`atexit` at the end. A request with `serve` (a place) and `preload` (modules, and folders to find them in) makes a fork
that imports them once, and is the server of what wants them.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import importlib
import importlib.util
import os
import pkgutil
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, BinaryIO, NoReturn

from desk import Desk, Request
from ports import free_port
from reducers import keep_reducers

SOON = {  # by framework what nearly every program imports, or Hypocenter in it
    "torch": (
        "torch", "torch._dynamo", "torch._subclasses.schema_check_mode", "torch.distributed.device_mesh",
        "torch.distributed.fsdp", "torch.distributed.tensor", "torch.optim.swa_utils", "torch.profiler._cupti_monitor",
        "torch.distributed.run", "pyarrow.pandas_compat", "safetensors.torch",
    ),
    "mindspore": ("mindspore", "mindspore.amp", "mindspore.experimental.optim", "mindspore.mint"),
}  # fmt: skip
OURS = (
    "hypocenter.cli", "hypocenter.cli.commands.run", "hypocenter.cli.commands.check", "hypocenter.boot.post_import",
    "hypocenter.align.children",
    "numpy.ctypeslib", "pyarrow.dataset", "pyarrow.parquet",
)  # fmt: skip
ROOMS = ("session", "tap", "replay", "summary", "record", "optimizers", "detect", "diagnose")  # of them all modules
NOT_SOON = ("__main__", "tap.frameworks.")  # but for what a program alone says that it is wanted
PATIENCE_S = 10.0  # between SIGTERM and SIGKILL to the ranks that are left; torchrun waits 30
POSIX_SPAWN = os.posix_spawn


class Become(BaseException):
    """Raised in a forked child, so that the frames it came from are gone before it runs a program of its own."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        super().__init__(argv)
        self.argv, self.env = list(argv), dict(env)


def main(place: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages that miss others
        _prepare()
    desk = Desk(place)
    os.write(1, b"ready\n")
    while request := desk.next():
        pid = os.fork()
        if pid:
            desk.give(request, pid)
            continue
        desk.close()
        if "serve" not in request.words:
            break
        request.leave_streams()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _import(request.words["preload"])
        desk = Desk(request.words["serve"])
        desk.answer(request.client, "ready")
    else:
        return
    _take_over(request)
    _leave(_code_of(request.words["argv"], request.words["env"]))


def _import(modules: Sequence[str]) -> None:
    sys.path += [folder for folder in modules if "/" in folder]
    for name in modules:
        if "/" not in name:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page


def _prepare() -> None:
    framework = "torch" if importlib.util.find_spec("torch") else "mindspore"
    for name in (*SOON[framework], *OURS):
        importlib.import_module(name)
    for name in (name for room in ROOMS for name in _modules_of(f"hypocenter.{room}")):
        if not any(part in name for part in NOT_SOON):
            with contextlib.suppress(ImportError):  # those of the other framework
                importlib.import_module(name)
    if framework == "torch":
        sys.modules["torch"].set_num_threads(1)
        keep_reducers()
        _rehearse()
    else:
        threads = [thread.read_text() for thread in Path("/proc/self/task").glob("*/comm")]
        assert not any("queue" in thread for thread in threads), "MindSpore runs already: a fork of it would hang"
    _import(())


def _rehearse() -> None:
    """Look at one forward under Hypocenter, so that what it makes once a process is there.

    Random numbers stay as they were. Arrow leaves threads, which it makes anew in a fork; Python none. No backward: it
    starts autograd's engine, which then knows no device that a program registers.
    """
    import torch

    import hypocenter
    from hypocenter.diagnose.diagnosis import diagnose
    from hypocenter.record.reader import open_run

    with tempfile.TemporaryDirectory() as out, torch.random.fork_rng():
        model = torch.nn.Linear(2, 2)
        with hypocenter.watch(out=out):
            model(torch.ones(2, 2))
        diagnose(open_run(out))
    faulthandler.disable()  # which a session leaves on, and the next one would leave as it is
    assert threading.active_count() == 1


def _modules_of(package: str) -> list[str]:
    return [found.name for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")]


def _take_over(request: Request) -> None:
    """Streams, folder, and a process group of its own, so that it can be ended with all its children."""
    request.client.close()
    os.setsid()
    os.chdir(request.words["cwd"])
    for number, stream in enumerate(request.streams):
        os.dup2(stream, number)
    request.leave_streams()
    os.posix_spawn = _spawn
    children = sys.modules["hypocenter.align.children"]
    children.subprocess = SimpleNamespace(**vars(subprocess) | {"Popen": _open})  # type: ignore[attr-defined]


def _code_of(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Be a command; what it ends with, said to stderr as Python says it."""
    try:
        _be(argv, env)
    except SystemExit as left:
        if left.code is None or isinstance(left.code, int):
            return left.code or 0
        sys.stderr.write(f"{left.code}\n")
        return 1
    except Exception:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def _leave(code: int) -> NoReturn:
    """End as Python ends, but for what it does last: it lets go of each object, a fork copies its page: 0.25 s."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if (own := vars(sys.modules["__main__"])) is not globals():
        own.clear()  # and its open files are written
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


def _be(argv: Sequence[str], env: Mapping[str, str]) -> None:
    while True:
        try:
            return _run(list(argv), env)
        except Become as next_:
            argv, env = next_.argv, next_.env


def _run(argv: list[str], env: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)
    is_launcher = argv[0] != sys.executable and argv != _unlinked(argv)
    argv = _unlinked(argv)
    if not is_understood(argv):
        os.execve(argv[0], argv, dict(env))
    if _is_standalone(argv):
        _be_agent(argv)
    elif Path(argv[0]).name == "torchrun":
        _be_torchrun(argv)
    elif argv[1:3] == ["-m", "hypocenter"]:
        from hypocenter.cli import main

        sys.exit(main(argv[3:]))
    else:
        _run_script(argv[1:], is_watched=not is_launcher)


def is_understood(argv: Sequence[str]) -> bool:
    """Whether a command is one of those of the module's text."""
    if argv[0] == sys.executable:
        return len(argv) > 1 and (argv[1] in ("-c", "-m") or argv[1].endswith(".py"))
    return Path(argv[0]).name == "torchrun"


def _is_standalone(argv: Sequence[str]) -> bool:
    return Path(argv[0]).name == "torchrun" and argv[1:3] == ["--standalone", "--nproc-per-node"]


def _unlinked(argv: Sequence[str]) -> list[str]:
    """A command that is a link to a script of Python, as what its first line says: Python with the script.

    Without `-u`, by which torchrun starts its ranks: their streams are what the server's are.
    """
    script = Path(argv[0]).resolve()
    if argv[0] == sys.executable and argv[1:2] == ["-u"]:
        return [argv[0], *argv[2:]]
    return [sys.executable, str(script), *argv[1:]] if script.suffix == ".py" else list(argv)


def _run_script(argv: list[str], is_watched: bool) -> None:
    """Be a script. One that is not watched has no session: it would import no torch, and starts those that do."""
    is_text, is_module, script = argv[0] == "-c", argv[0] == "-m", Path(argv[0]).absolute()
    place = "" if is_text else os.getcwd() if is_module else str(script.resolve().parent)  # noqa: PTH109
    sys.argv = [argv[0], *argv[2 if is_text or is_module else 1 :]]
    added = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if os.environ.get("HYPOCENTER_RUN"):
        from hypocenter.boot.post_import import arm

        added = added[1:]  # the shim takes itself off the path
        if is_watched:
            arm()  # and does this: torch is there, so that the session starts at once
    sys.path[:] = [place, *dict.fromkeys([*added, *sys.path[1:]])]
    module = ModuleType("__main__")
    module.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = module
    if is_module:
        runpy._run_module_as_main(argv[1])  # type: ignore[attr-defined]  # what Python itself calls
    elif is_text:
        exec(compile(argv[1], "<string>", "exec"), module.__dict__)
    else:
        module.__file__ = str(script)
        exec(compile(script.read_bytes(), str(script), "exec"), module.__dict__)


def _spawn(
    path: str, argv: Sequence[str], env: Mapping[str, str], *, setsigmask: Any = (), setsigdef: Any = (), **others: Any
) -> int:
    """In place of `os.posix_spawn`, where `hypocenter run` starts its program."""
    if others or not is_understood(_unlinked(argv)):
        return POSIX_SPAWN(path, list(argv), env, setsigmask=setsigmask, setsigdef=setsigdef, **others)
    pid = os.fork()
    if pid:
        return pid
    for number in setsigdef:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, setsigmask)
    raise Become(argv, env)


class _Child:
    """Of a fork what a `subprocess.Popen` tells."""

    def __init__(self, pid: int) -> None:
        self.pid, self._code = pid, None

    def poll(self) -> int | None:
        if self._code is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self._code = os.waitstatus_to_exitcode(ended[1])
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        begun = time.monotonic()
        while self.poll() is None:
            if timeout is not None and time.monotonic() > begun + timeout:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)
        assert self._code is not None
        return self._code


def _open(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, stdout: BinaryIO, **others: Any) -> Any:
    """In place of `subprocess.Popen`, where `align`, `determinism` and `twin` start a program (align/children.py).

    The frames it came from stay: some of them would tidy up on their way out.
    """
    if not is_understood(_unlinked(argv)):
        return subprocess.Popen(argv, env=env, cwd=cwd, stdout=stdout, **others)
    pid = os.fork()
    if pid:
        return _Child(pid)
    os.setsid()
    os.chdir(cwd)
    for number in (1, 2):
        os.dup2(stdout.fileno(), number)
    _draw_anew()
    _leave(_code_of(argv, env))


def _draw_anew() -> None:
    """Programs that are compared draw as processes of their own: others than the one before, if nobody seeds them."""
    sys.modules["numpy"].random.seed()  # type: ignore[attr-defined]
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def _be_agent(argv: list[str]) -> NoReturn:
    n_ranks, script = int(argv[3]), argv[4:]
    port = free_port()
    living: dict[int, int] = {}
    for rank in range(n_ranks):
        pid = os.fork()
        if pid == 0:
            raise Become([sys.executable, *script], dict(os.environ) | _of_rank(rank, n_ranks, port))
        living[pid] = rank
    worst, deadline_s = 0, None
    while living:
        pid, status = os.waitpid(-1, os.WNOHANG if deadline_s else 0)
        code = os.waitstatus_to_exitcode(status) if living.pop(pid, None) is not None else 0
        if code and not worst:
            worst, deadline_s = 1, time.monotonic() + PATIENCE_S  # torchrun's own code, whatever the rank's
            sys.stderr.write(f"failed (exitcode: {code})\n")
            _signal(living, signal.SIGTERM)
        elif deadline_s and not pid:
            time.sleep(0.01)
            if time.monotonic() > deadline_s:
                _signal(living, signal.SIGKILL)
    sys.exit(worst)


def _be_torchrun(argv: list[str]) -> None:
    """It has threads when it starts ranks, so that they are no forks of it: each asks the server for one."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
    from torch.distributed.run import main

    start = SubprocessHandler._popen
    asking = (sys.executable, "-IS", str(Path(__file__).with_name("warm_client.py")), Desk.place)
    SubprocessHandler._popen = lambda self, args, env: start(self, (*asking, *args), env)  # type: ignore[method-assign]
    sys.argv = argv
    main(argv[1:])


def _of_rank(rank: int, n_ranks: int, port: int) -> dict[str, str]:
    """What torchrun gives a rank. The store is rank 0's, not the agent's."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "ROLE_RANK": rank, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1}
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), n_ranks)
    elastic = {"TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0, "TORCHELASTIC_RUN_ID": f"fork-{port}"}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {name: str(value) for name, value in (numbers | sizes | elastic | place).items()}


def _signal(pids: Mapping[int, int], number: int) -> None:
    for pid in pids:
        os.kill(pid, number)  # not yet waited for, so that the number is still theirs


if __name__ == "__main__":
    main(sys.argv[1])
