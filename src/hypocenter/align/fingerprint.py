"""What a recording's numbers depend on, as far as can be seen, in one digest: when it changes, it is done again."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import hypocenter
from hypocenter.align.plan import Plan, SideName

_LARGEST_BYTES = 8 << 20  # of a file whose content is looked at; of larger ones (data, weights) size and time
_N_DIGITS = 10


def digest_of(*parts: object) -> str:
    """Return hexadecimal digits that identify any plain values."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_N_DIGITS]


def of_side(plan: Plan, name: SideName) -> str:
    """Return the digest of one side: command, variables, content of files they name or import, and our version."""
    side, folder = plan.side(name), plan.start_folder(name)
    named = [path for word in side.argv if (path := folder / word).is_file()]
    extra = [path for pattern in side.files for path in sorted(plan.folder.glob(pattern)) if path.is_file()]
    contents = {str(path): _content(path) for path in _with_imports([*named, *extra])}
    return digest_of(side.argv, str(folder), side.variables, side.recordings, contents, hypocenter.__version__)


def of_files(paths: Iterable[Path]) -> str:
    """Return the digest of the content of files, such as configurations."""
    return digest_of({str(path): _content(path) for path in paths})


def _with_imports(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the files, the Python files beside a script that it imports, and what those import."""
    waiting, seen = list(paths), set[Path]()
    while waiting:
        path = waiting.pop(0).resolve()
        if path in seen:
            continue
        seen.add(path)
        yield path
        if path.suffix == ".py":
            waiting += _imported(path)


def _imported(script: Path) -> Iterator[Path]:
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module or ''}.{alias.name}".strip(".") for alias in node.names)]
        else:
            continue
        for name in filter(None, names):
            beside = script.parent.joinpath(*name.split("."))
            yield from (path for path in (beside.with_suffix(".py"), beside / "__init__.py") if path.is_file())


def _content(path: Path) -> str:
    try:
        status = path.stat()
        if status.st_size > _LARGEST_BYTES:
            return f"{status.st_size} {status.st_mtime_ns}"
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        return f"unreadable: {error.errno}"
