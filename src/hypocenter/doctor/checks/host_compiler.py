"""The host compiler is newer than the CUDA toolkit takes.

What it means
    nvcc hands the host part of a source to gcc, and refuses one that is newer than itself: `#error -- unsupported GNU
    version! gcc versions later than 7 are not supported!`

How it is decided
    The compiler is what nvcc would take: CC, which torch's builds pass on, else NVCC_CCBIN, else `gcc` beside nvcc in
    the toolkit's bin, else gcc on PATH. It is asked for its version; so is the C++ compiler that torch looks at (CXX,
    else c++ on PATH), for which too new is a warning. The newest that the toolkit takes is read
    from its own include/crt/host_config.h; if there is none, from a table by release. Where another toolkit has to be
    chosen first, it is judged for that one. It is a problem where extensions are built here, else a note.

What to do
    Install a newer toolkit, or an older compiler beside the new one: a link in the toolkit's bin lets nvcc find it; CC,
    CXX and NVCC_CCBIN do the same for one shell.

When it is wrong
    When the build passes -allow-unsupported-compiler or another -ccbin.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from hypocenter.doctor import building, cuda
from hypocenter.doctor.answer import Verdict, cannot_tell, not_applicable, ok, problem, warning
from hypocenter.doctor.catalogue import check
from hypocenter.doctor.machine import Machine, major, version_numbers, version_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """A host compiler: its path, `gcc` or `clang`, its major version, and what chose it."""

    path: str
    kind: str
    version: str
    chosen_by: str


@check("toolkit.host-compiler", title="host compiler", order=42)
def host_compiler(machine: Machine) -> Verdict:
    """Whether nvcc takes the host compiler."""
    folder, release = _toolkit(machine)
    builds = building.reason(machine)
    if not cuda.wanted(machine) or not release:
        return not_applicable("no nvcc is in use")
    found = chosen(machine, folder)
    if found is None:
        if not builds:
            return ok("no host compiler is found, and no extensions are built here")
        return problem(f"nvcc {release} finds no host compiler", "extensions are compiled with both",
                       ("sudo apt-get install g++",))  # fmt: skip
    limit, source = newest(machine, folder, release, found.kind)
    if limit is None:
        return cannot_tell(
            f"which {found.kind} nvcc {release} takes is not known", f"{found.path} is {found.kind} {found.version}"
        )
    have = version_numbers(found.version)[0]
    facts = {"compiler": found.version, "newest": limit, "cuda": release, "source": source, "path": found.path}
    other = _for_torch(machine, found)
    if have <= limit and other is not None and other.kind == found.kind and version_numbers(other.version)[0] > limit:
        return warning(
            f"nvcc takes {found.path}, but torch's builds look at {other.path}, {other.kind} {other.version}",
            f"torch refuses a C++ compiler that is too new for CUDA {release} (up to {limit})",
            (f"export CC={shlex.quote(found.path)} CXX={shlex.quote(_plus_plus(found.path))}",), **facts,
        )  # fmt: skip
    if have <= limit:
        return ok(f"nvcc {release} takes {found.kind} {found.version} (up to {limit})", **facts)
    what = f"{found.kind} {found.version} ({found.path}) is too new for CUDA {release}, which takes up to {limit}"
    if not builds:
        return ok(f"{what}; no extensions are built here", **facts)
    return problem(what, f"nvcc stops with: unsupported GNU version ({source}; extensions are built here: {builds})",
                   fixes(machine, folder, limit), **facts)  # fmt: skip


def _toolkit(machine: Machine) -> tuple[str, str]:
    """Return folder and release of the toolkit that builds take, or of the one that they have to take instead."""
    folder, _ = cuda.home(machine)
    release = (cuda.nvcc_release(machine, f"{folder}/bin/nvcc") or cuda.told(machine, folder)) if folder else ""
    right = cuda.matching(machine)
    if right is not None and major(release) != major(right.release):
        return right.folder, right.release
    return folder, release


def chosen(machine: Machine, folder: str) -> Compiler | None:
    """Return the compiler that nvcc takes, with the version it says; None when there is none."""
    beside = f"{folder}/bin/gcc"
    tries = [(_first_word(machine, name), name) for name in ("CC", "NVCC_CCBIN")]
    tries += [(beside if machine.is_file(beside) else "", "the toolkit's bin")]
    tries += [(next(iter(machine.programs(name)), ""), "PATH") for name in ("gcc", "cc")]
    for path, by in tries:
        if path and (version := _version(machine, path)):
            return Compiler(path=path, kind=version[0], version=version[1], chosen_by=by)
    return None


def _for_torch(machine: Machine, found: Compiler) -> Compiler | None:
    """Return the C++ compiler whose version torch's builds look at (CXX, else c++ or g++); None if it is `found`."""
    tries = [_first_word(machine, "CXX"), *(next(iter(machine.programs(name)), "") for name in ("c++", "g++"))]
    path = next((path for path in tries if path), "")
    version = _version(machine, path) if path and path != found.path else None
    return Compiler(path=path, kind=version[0], version=version[1], chosen_by="torch") if version else None


def _first_word(machine: Machine, name: str) -> str:
    return next(iter(machine.environ.get(name, "").split()), "")


def _plus_plus(path: str) -> str:
    """Return the C++ compiler beside a C compiler: g++-7 beside gcc-7."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/{name.replace('gcc', 'g++').replace('clang', 'clang++')}" if "++" not in name else path


def newest(machine: Machine, folder: str, release: str, kind: str) -> tuple[int | None, str]:
    """Return the newest major version that a toolkit takes (None: not known), and who says so."""
    header = f"{folder}/include/crt/host_config.h"
    pattern = r"#\s*if\s+__GNUC__\s*>\s*(\d+)" if kind == "gcc" else r"#\s*if\s+\(?__clang_major__\s*>=\s*(\d+)"
    if match := re.search(pattern, machine.text(header)):
        return int(match[1]) - (kind == "clang"), header
    known = version_table("cuda")["release"].get(release, {}).get(kind)
    return known, "CUDA Installation Guide, host compiler support"


def fixes(machine: Machine, folder: str, limit: int) -> tuple[str, ...]:
    """Return lines that link an older compiler, an installed one if there is one, and a line for one shell only."""
    installed = sorted({int(name[4:]) for at in machine.search("PATH") for name in machine.names(at, r"gcc-\d+")})
    older = max((number for number in installed if number <= limit), default=None)
    number = older if older is not None else limit
    where = next((at for at in machine.search("PATH") if machine.is_file(f"{at}/gcc-{number}")), "/usr/bin").rstrip("/")
    lines = [] if older is not None else [f"sudo apt-get install gcc-{number} g++-{number}"]
    at = shlex.quote(f"{folder}/bin")
    lines += [f"sudo ln -s {where}/{name}-{number} {at}/{name}" for name in ("gcc", "g++")]
    lines += [
        f"export CC={where}/gcc-{number} CXX={where}/g++-{number} NVCC_CCBIN={where}/g++-{number}  # torch looks here"
    ]
    return tuple(lines)


def _version(machine: Machine, path: str) -> tuple[str, str] | None:
    reply = machine.ask((path, "--version"))
    if reply is None or not reply.is_good:
        return None
    first = reply.text.partition("\n")[0]
    kind = "clang" if "clang" in first.lower() else "gcc"
    without_vendor = re.sub(r"\([^)]*\)", " ", first)
    match = re.search(r"(\d+\.\d+(?:\.\d+)?)", without_vendor) or re.search(r"\b(\d+)\b", without_vendor)
    return (kind, match[1]) if match else None
