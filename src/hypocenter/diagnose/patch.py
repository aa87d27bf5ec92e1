"""The code change for the user's own source, as a unified diff to read. Nothing here writes to it."""

from __future__ import annotations

import difflib
import io
import sysconfig
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hypocenter.diagnose.float32_block import statements
from hypocenter.diagnose.float32_function import whole_function
from hypocenter.diagnose.source_text import CannotRewrite, Text, applied

How = Literal["forward", "statement"]
LIBRARY_FOLDERS = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A change to read: `diff` for `patch -p1` or `git apply`; `words` when there is none, or what it needs beside."""

    diff: str = ""
    words: str = ""


def patch_for(source_path: str | Path, line: int, how: How, *, targets: Sequence[str] = ()) -> str:
    """The diff, or words where no diff can be made. See `propose`."""
    found = propose(source_path, (line,), how, targets=targets)
    return found.diff or found.words


def propose(
    source_path: str | Path,
    lines: Sequence[int],
    how: How,
    *,
    targets: Sequence[str] = (),
    cast_back: bool | None = None,
    floating: Sequence[str] = (),
    below: str | Path | None = None,
    half: bool = False,
) -> Patch:
    """The change that puts code in float32: an `autocast(enabled=False)` block with `.float()` at its tensors.

    Args:
        source_path: the user's file.
        lines: counted from 1; for "forward" any line of the function, for "statement" every line to be in float32.
        how: a whole function, whose old body is then called with float32 arguments, or single statements.
        targets: module paths for `hypocenter.island`, which is proposed when there is no diff.
        cast_back: whether the result gets the inputs' format again. By default a function's does, and a statement's
            only in a half-precision model: under autocast the value that overflowed would do so again.
        floating: for "forward", arguments known to be floating-point tensors; others are looked at when called.
        below: folder that the names in the diff are relative to; the working directory when not given.
        half: the model's parameters are in half precision; those of a changed function's module have to leave it.
    """
    path = Path(source_path)
    if is_library(path):
        return Patch(words=f"{path.name} belongs to a library; change it from outside: {api(targets)}")
    try:
        content = path.read_bytes()
        coding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = Text(content.decode(coding))
        if how == "forward":
            edits = whole_function(text, lines[0], floating=floating, cast_back=cast_back is not False)
        else:
            edits = statements(text, lines, cast_back=half if cast_back is None else cast_back)
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        return Patch(words=f"{path.name} cannot be read ({error}); without a change in it: {api(targets)}")
    except CannotRewrite as error:
        return Patch(words=f"no diff, because {error}; without one: {api(targets)}")
    diff = _diff(text.lines, applied(text, edits), _shown(path, below))
    beside = [_parameters_too(targets)] if half and how == "forward" else []
    if targets and (name := text.class_name(lines[0])):
        beside.append(f"the diff changes every {name}; {api(targets)} only what it names")
    return Patch(diff=diff, words="; ".join(beside))


def api(targets: Sequence[str], *, cast_back: bool = True) -> str:
    """The one line that does the same without a change in the module's source."""
    names = ", ".join(f'"{target}"' for target in targets) or "..."
    return f"hypocenter.island(model, [{names}]{'' if cast_back else ', cast_back=False'})"


def _parameters_too(targets: Sequence[str]) -> str:
    modules = "; ".join(f'model.get_submodule("{target}").float()' for target in targets) or "module.float()"
    return f"after `.half()` or `.bfloat16()`, give its parameters float32 back: {modules}"


def is_library(path: Path) -> bool:
    """Whether a file is installed rather than written by the user."""
    standard = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    return bool(LIBRARY_FOLDERS & set(path.parts)) or any(path.is_relative_to(folder) for folder in standard if folder)


def _shown(path: Path, below: str | Path | None) -> str:
    folder = Path.cwd() if below is None else Path(below)
    absolute = path.absolute()
    return (absolute.relative_to(folder) if absolute.is_relative_to(folder) else Path(path.name)).as_posix()


def _diff(before: Sequence[str], after: Sequence[str], name: str) -> str:
    lines = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
