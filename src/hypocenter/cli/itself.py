"""`hypocenter doctor --self`: is Hypocenter itself well here: versions, extras, terminal, places, native parts."""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from hypocenter import __version__
from hypocenter.doctor.answer import Check, Verdict, cannot_tell, ok, problem, warning
from hypocenter.errors import first_line
from hypocenter.record.layout import RUNS_FOLDER
from hypocenter.report.screen import can_draw, screen_of

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")
_FRAMEWORKS = ("torch", "mindspore")


def checks() -> Iterator[Check]:
    """Yield all checks in the order of reading; none takes more than a moment or imports a framework."""
    looks: dict[str, tuple[str, Callable[[], Verdict]]] = {
        "version": ("version", _version),
        "packages": ("packages", _packages),
        "native": ("native parts", _native),
        "extras": ("extras", _extras),
        "frameworks": ("frameworks", _frameworks),
        "system": ("system", _system),
        "terminal": ("terminal", _terminal),
        "places": ("writable places", _places),
    }
    for name, (title, look) in looks.items():
        try:
            found = look()
        except Exception as error:  # an installation that is broken raises what it likes
            found = problem("this cannot be looked at", f"{type(error).__name__}: {first_line(error)}")
        yield Check(
            code=f"self.{name}",
            area="itself",
            title=title,
            status=found.status,
            what=found.what,
            why=found.why,
            fix=found.fix,
            evidence=found.evidence,
        )


def _version() -> Verdict:
    where = Path(__file__).resolve().parents[1]
    return ok(f"hypocenter {__version__} in {where}, Python {platform.python_version()} ({sys.executable})")


def _requires() -> list[str]:
    try:
        return metadata.requires("hypocenter") or []
    except metadata.PackageNotFoundError:
        return []


def _installed(requirement: str) -> tuple[str, str]:
    """Return the name in a requirement and its installed version; "" when it is not installed."""
    match = _NAME.match(requirement)
    name = match[0] if match else requirement
    try:
        return name, metadata.version(name)
    except metadata.PackageNotFoundError:
        return name, ""


def _packages() -> Verdict:
    declared = [text for text in _requires() if not _EXTRA.search(text) and "python_version" not in text]
    if not declared:
        return cannot_tell("which packages it needs is not known", "it is on the path, but not installed")
    versions = dict(map(_installed, declared))
    missing = [name for name, version in versions.items() if not version]
    if missing:
        return problem(
            f"missing: {', '.join(missing)}", "commands that need them fail", [f"pip install {' '.join(missing)}"]
        )
    return ok(", ".join(f"{name} {version}" for name, version in versions.items()), versions=versions)


def _native() -> Verdict:
    """Ask each compiled package for a little that its native part does."""
    import duckdb
    import msgspec
    import numpy as np
    import pyarrow as pa
    from safetensors.numpy import load, save

    table = pa.table({"a": [1, 2, 3]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    again = pa.ipc.open_stream(sink.getvalue()).read_all()
    with duckdb.connect(":memory:") as connection:
        connection.register("t", again)
        (total,) = connection.sql("select sum(a) from t").fetchall()[0]
    kept = load(save({"x": np.arange(3.0)}))["x"]
    if total != 6 or msgspec.json.decode(b"[1]") != [1] or kept.sum() != 3.0:
        return problem("a compiled package computes nonsense", "arrow, duckdb, msgspec or safetensors", ["pip check"])
    return ok("arrow, duckdb, msgspec and safetensors read back what they wrote")


def _extras() -> Verdict:
    wanted: dict[str, list[str]] = {}
    for text in _requires():
        match = _EXTRA.search(text)
        if match and match[1] != "test":
            wanted.setdefault(match[1], []).append(text)
    if not wanted:
        return cannot_tell("which extras there are is not known", "it is on the path, but not installed")
    has = {name: all(_installed(text)[1] for text in texts) for name, texts in wanted.items()}
    there = [name for name, is_there in has.items() if is_there]
    missing = [name for name, is_there in has.items() if not is_there]
    parts = [f"installed: {', '.join(there) or 'none'}"]
    parts += [f"not installed: {', '.join(missing)} (pip install 'hypocenter[{missing[0]}]')"] if missing else []
    return ok("; ".join(parts), **has)


def _frameworks() -> Verdict:
    seen = {name: _installed(name)[1] or "?" for name in _FRAMEWORKS if find_spec(name) is not None}
    if not seen:
        return warning(
            "none: recordings are read here, and not made",
            "run, replay and a search for a cure need torch, or MindSpore",
        )
    return ok(", ".join(f"{name} {version}" for name, version in seen.items()), versions=seen)


def _system() -> Verdict:
    name = f"{platform.system()} {platform.release()} on {platform.machine()}"
    if hasattr(os, "posix_spawn"):
        return ok(f"{name}: programs are recorded and recordings are read")
    return warning(f"{name}: recordings are read, and not made", "programs are recorded on Linux and macOS")


def _terminal() -> Verdict:
    screen, encoding = screen_of(sys.stdout), getattr(sys.stdout, "encoding", None) or "utf-8"
    kind = "a terminal" if sys.stdout.isatty() else "no terminal"
    colour = "with colour" if screen.colour else "without colour"
    drawing = "" if can_draw(sys.stdout) else "; its encoding has no bars, so charts are drawn in plain characters"
    return ok(f"{kind} of {screen.width} columns, {colour}, {encoding}{drawing}")


def _places() -> Verdict:
    folder = Path(RUNS_FOLDER)
    places = {f"./{RUNS_FOLDER}": folder if folder.is_dir() else Path(), "temporary files": Path(tempfile.gettempdir())}
    refused = [f"{name} ({why})" for name, place in places.items() if (why := _why_not(place))]
    if refused:
        return warning(
            f"cannot be written to: {', '.join(refused)}", "reading goes on; name another place with --out or TMPDIR"
        )
    return ok(f"{' and '.join(places)} ({tempfile.gettempdir()})")


def _why_not(folder: Path) -> str:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)
