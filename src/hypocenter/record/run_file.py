"""run.json: what made a recording. Replaced atomically, so a reader sees a whole one at any time."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import msgspec

from hypocenter.nouns import Run
from hypocenter.record.layout import FORMAT, RUN_FILE

EndStatus = Literal["finished", "failed", "killed"]
_RANKING: tuple[str, ...] = ("running", "finished", "killed", "failed")  # when ranks disagree, the later one stays


def start_run(
    directory: Path, command: Sequence[str], config: Mapping[str, Any], world_size: int, versions: Mapping[str, str]
) -> str:
    """Write run.json with status `running`, unless another rank has: the first one wins.

    Returns:
        Why it could not be written; empty when it could, or when it was there already. Never raises.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        run = Run(
            format=FORMAT,
            name=directory.resolve().name,
            command=tuple(str(part) for part in command),
            started=_now(),
            world_size=int(world_size),
            config=dict(config),
            versions={str(name): str(version) for name, version in versions.items()},
            host=socket.gethostname(),
        )
        _write_first(directory / RUN_FILE, encode(run))
    except FileExistsError:
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def finish_run(directory: Path, status: EndStatus, exit_code: int | None, warnings: Sequence[str] = ()) -> str:
    """Rewrite run.json with how the run ended. Several ranks may call: the worst status and all warnings stay.

    Returns:
        Why it could not be written; empty when it could. Never raises.
    """
    path = directory / RUN_FILE
    try:
        with _locked(directory):
            run = _existing(path, directory)
            worse = _RANKING.index(status) >= _RANKING.index(run.status)
            keep_code = run.exit_code if run.exit_code not in (None, 0) else exit_code
            ended = replace(
                run,
                ended=_now(),
                status=status if worse else run.status,
                exit_code=exit_code if exit_code not in (None, 0) else keep_code,
                warnings=tuple(dict.fromkeys((*run.warnings, *(str(w) for w in warnings)))),
            )
            _replace(path, encode(ended))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def encode(run: Run) -> bytes:
    """The run as indented JSON; what JSON cannot hold is written as its `str`."""
    try:
        text = msgspec.json.encode(run, enc_hook=str)
    except Exception:  # surrogates, keys that are no text, cycles
        config = {_plain(key): _plain(value) for key, value in run.config.items()}
        clean = replace(
            run,
            name=_plain(run.name),
            command=tuple(map(_plain, run.command)),
            config=config,
            versions={_plain(k): _plain(v) for k, v in run.versions.items()},
            warnings=tuple(map(_plain, run.warnings)),
        )
        text = msgspec.json.encode(clean, enc_hook=str)
    return msgspec.json.format(text, indent=2) + b"\n"


def _plain(value: Any) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode()


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def _existing(path: Path, directory: Path) -> Run:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Run)
    except (OSError, ValueError, RecursionError):
        return Run(format=FORMAT, name=directory.resolve().name)


def _temporary(path: Path, data: bytes) -> Path:
    name = path.with_name(f".{path.name}-{socket.gethostname()}-{os.getpid()}-{time.monotonic_ns()}")
    with name.open("xb") as file:
        file.write(data)
    return name


@contextmanager
def _locked(directory: Path) -> Generator[None, None, None]:
    """Keep other ranks of this machine out for the milliseconds it takes; where locks do not work, go on without."""
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for _ in range(100):  # at most a second: a dead lock server must not hold up the end of a training program
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                break
        yield
    finally:
        os.close(fd)


def _write_first(path: Path, data: bytes) -> None:
    """Put a whole file in place; raises FileExistsError when there is one."""
    if path.exists():
        raise FileExistsError(str(path))
    name = _temporary(path, data)
    try:
        os.link(name, path)
    except FileExistsError:
        raise  # another rank was first
    except OSError:  # a file system without hard links: two ranks of the same millisecond may both write the same
        name.replace(path)
    finally:
        name.unlink(missing_ok=True)


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    name = _temporary(path, data)
    try:
        name.replace(path)
    finally:
        name.unlink(missing_ok=True)
