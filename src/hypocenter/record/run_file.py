"""run.json: what made a recording. Replaced atomically, so a reader sees a whole one at any time."""

from __future__ import annotations

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
from hypocenter.record.whole_file import write_whole, written_beside

try:
    import fcntl
except ImportError:  # Windows, where nothing is recorded, only imported
    fcntl = None

EndStatus = Literal["finished", "failed", "killed"]
_RANKING: tuple[str, ...] = ("running", "finished", "killed", "failed")  # when ranks disagree, the later one stays


def start_run(
    directory: Path,
    command: Sequence[str],
    config: Mapping[str, Any],
    world_size: int,
    versions: Mapping[str, str],
    imposed: Mapping[str, str] | None = None,
    git: str = "",
) -> str:
    """Write run.json with status `running`. Several processes may call: the first one wins, and what only a later
    one knows is added (a launcher's parent cannot know the world size: the largest one stays; so do all versions and
    all that was imposed).

    Returns:
        Why it could not be written; empty when it could. Never raises.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        run = Run(
            format=FORMAT,
            name=directory.resolve().name,
            command=tuple(str(part) for part in command),
            folder=str(Path.cwd()),
            started=_now(),
            world_size=int(world_size),
            config=dict(config),
            versions={str(name): str(version) for name, version in versions.items()},
            git=git,
            host=socket.gethostname(),
            imposed=dict(imposed or {}),
        )
        if not _written_first(directory / RUN_FILE, encode(run)):
            _add_knowledge(directory, run)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def finish_run(directory: Path, status: EndStatus, exit_code: int | None, warnings: Sequence[str] = ()) -> str:
    """Rewrite run.json with how the run ended. Several ranks may call: the worst end and all warnings stay.

    Returns:
        Why it could not be written; empty when it could. Never raises.
    """
    path = directory / RUN_FILE
    try:
        with _locked(directory):
            run = _existing(path) or Run(format=FORMAT, name=directory.resolve().name)
            is_worse = _RANKING.index(status) > _RANKING.index(run.status)
            ended = replace(
                run,
                ended=_now(),
                status=status if is_worse else run.status,
                exit_code=exit_code if is_worse or run.exit_code is None else run.exit_code,
                warnings=tuple(dict.fromkeys((*run.warnings, *(str(w) for w in warnings)))),
            )
            write_whole(path, encode(ended))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _add_knowledge(directory: Path, run: Run) -> None:
    path = directory / RUN_FILE
    with _locked(directory):
        first = _existing(path)
        if first is None:
            return  # broken: finish_run replaces it
        known = replace(
            first,
            world_size=max(first.world_size, run.world_size),
            versions={**run.versions, **first.versions},
            imposed={**run.imposed, **first.imposed},
        )
        if known != first:
            write_whole(path, encode(known))


def encode(run: Run) -> bytes:
    """Return the run as indented JSON; what JSON cannot hold is written as its `str`."""
    try:
        text = msgspec.json.encode(run, enc_hook=str)
    except Exception:  # surrogates, keys that are no text, cycles
        config = {_plain(key): _plain(value) for key, value in run.config.items()}
        clean = replace(
            run,
            name=_plain(run.name),
            command=tuple(map(_plain, run.command)),
            folder=_plain(run.folder),
            config=config,
            versions={_plain(k): _plain(v) for k, v in run.versions.items()},
            warnings=tuple(map(_plain, run.warnings)),
            imposed={_plain(k): _plain(v) for k, v in run.imposed.items()},
            imported=run.imported and replace(run.imported, path=_plain(run.imported.path)),
        )
        text = msgspec.json.encode(clean, enc_hook=str)
    return msgspec.json.format(text, indent=2) + b"\n"


def _plain(value: Any) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode()


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def _existing(path: Path) -> Run | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Run)
    except (OSError, ValueError, RecursionError):
        return None


@contextmanager
def _locked(directory: Path) -> Generator[None, None, None]:
    """Keep other ranks of this machine out for the milliseconds it takes; where locks do not work, go on without."""
    if fcntl is None:
        yield
        return
    fd = os.open(directory, os.O_RDONLY)
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


def _written_first(path: Path, data: bytes) -> bool:
    """Write a file that appears whole; return False when there is one already."""
    if path.exists():
        return False
    name = written_beside(path, data)
    try:
        os.link(name, path)
    except FileExistsError:
        return False  # another rank was first
    except OSError:  # a file system without hard links: two ranks of the same millisecond may both write the same
        name.replace(path)
    finally:
        name.unlink(missing_ok=True)
    return True
