"""Start a session in this process as soon as, and only if, the program itself has imported torch or mindspore.

Executed by the shim in every Python process of a job, by path and under a private name: standard library only, and
nothing is imported that `site` has not loaded already, until one of them is there. Nothing here raises into the
program.
"""

# ruff: noqa: PTH100, PTH118, PTH120, PTH123
# pathlib would cost every process of the job 5 ms
from __future__ import annotations

import os
import sys
from _frozen_importlib_external import PathFinder, SourceFileLoader  # importlib.machinery's, without its 3 ms

TYPE_CHECKING = False  # importing typing would cost every process of the job 4 ms
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

FRAMEWORKS = ("torch", "mindspore")
REACHED_FILE = ".reached"  # in the run directory, one line a process that imported one; `hypocenter run` reads it
WARNED_FILE = ".warned"  # in the run directory: some process has already said why it cannot record


def arm() -> None:
    """Install the hooks; if a framework is there already (a `.pth` file imported it), start at once."""
    sys.meta_path.append(OwnPackageFinder(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))
    for framework in FRAMEWORKS:
        _arm_for(framework)
    options = os.environ.get("HYPOCENTER_CONFIG", "")
    said = options.replace("%22", '"')
    if '"deterministic":true' in said or ('"seed":' in said and '"seed":null' not in said):
        _seed_at_imports(options)


def _arm_for(framework: str) -> None:
    def started() -> None:
        start(framework)

    if framework in sys.modules:
        started()
    else:
        sys.meta_path.insert(0, _finder_class()(framework, started, _warn))


def _seed_at_imports(options: str) -> None:
    """Seed generators when they are imported, so that they have their seed also before torch, or without it."""
    import json
    from urllib.parse import unquote

    from hypocenter import deterministic

    config = json.loads(unquote(options) if options.startswith("%7B") else options)
    seed = deterministic.SEED if config.get("seed") is None else config["seed"]
    is_deterministic = bool(config.get("deterministic"))
    for name in ("random", "numpy", "mindspore"):

        def seeded(name: str = name) -> None:
            try:
                deterministic.at_import(name, seed, deterministic=is_deterministic)
            except Exception as error:
                _warn(f"{name} is not seeded: {type(error).__name__}: {error}")

        if name in sys.modules:
            seeded()
        else:
            sys.meta_path.insert(0, _finder_class()(name, seeded, _warn))


def _finder_class() -> Any:
    """Return `hypocenter.post_import_finder.PostImportFinder`, without importing the package."""
    if not _loaded:
        path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "post_import_finder.py")
        _loaded.append(type(sys)("_hypocenter_post_import_finder"))
        SourceFileLoader(_loaded[0].__name__, path).exec_module(_loaded[0])
    return _loaded[0].PostImportFinder


_loaded: list[Any] = []


class OwnPackageFinder:
    """Last on the meta path: finds the package `hypocenter` beside this file when the interpreter has none of its own.

    It adds one package, not a folder of them: with the folder on `sys.path`, optional imports of the program could
    succeed that fail without Hypocenter.
    """

    def __init__(self, root: str) -> None:
        self._root = root

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of `hypocenter` itself (its submodules are then found through its `__path__`); else None."""
        return PathFinder.find_spec(fullname, [self._root]) if fullname == "hypocenter" else None


def start(framework: str = "torch") -> None:
    """Note that this process has a framework and start its session. A failure is said once a run; training goes on."""
    _note_reached()
    try:
        from hypocenter.session import start_from_env

        start_from_env(framework)
    except ImportError as error:
        _warn(
            f"{sys.executable} cannot import {error.name or 'hypocenter'} ({error}); "
            f"to record, install it there, from its clone: {sys.executable} -m pip install ."
        )
    except Exception as error:
        _warn(f"{type(error).__name__}: {error}")


def _note_reached() -> None:
    """Add this process to the file of processes that imported a framework, once even if it imports both."""
    if os.getpid() in _noted:
        return
    _noted.append(os.getpid())
    try:
        with open(os.path.join(os.environ["HYPOCENTER_RUN"], REACHED_FILE), "a", encoding="ascii") as file:
            file.write(f"{os.getpid()}\n")
    except (OSError, KeyError):
        return  # it only words a note better


_noted: list[int] = []


def _warn(text: str) -> None:
    """Write one line to stderr, unless another process of the run has already written one."""
    try:
        os.close(os.open(os.path.join(os.environ["HYPOCENTER_RUN"], WARNED_FILE), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    except (OSError, KeyError):
        pass  # better said by every process than by none
    if sys.stderr is not None:
        sys.stderr.write(f"hypocenter: not recording, the program goes on: {text}\n")
