"""Damage to a copy of a dump, as disks, broken transfers and people with bad intent do it; each from a random seed."""

from __future__ import annotations

import contextlib
import json
import pickle
import random
import shutil
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Damage = Callable[[Path, random.Random], None]
_WORDS = (
    b"NaN",
    b"1e999",
    b"-1",
    b"[",
    b"{",
    b'"',
    b"null",
    b"9" * 30,
    b"\\u0000",
    b"\0",
    b"../",
    b"\n",
    b",,",
    b"(" * 40,
)
_ODD: tuple[Any, ...] = (
    None, True, -1, 0, 10**400, -(10**30), 1 << 40, 1e308, float("nan"), float("inf"), "", "\0", "../../etc/passwd",
    "x" * 5000, "\ud800", "nan", [], {}, [[[]]] * 3, {"shape": [1 << 62], "dtype": "torch.float32"},
    {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [1 << 20] * 3, "Max": "x", "data_name": ".."},
)  # fmt: skip
_NAMES = (
    "step999999999999",
    "rank-1",
    "rank99999999999",
    "proc",
    "step0 (copy)",
    "a" * 200,
    "Ñ\u202e",
    "step1.npy",
    "..x",
)
_BOMB = 64 << 20  # bytes of zeros in a file that is small when packed


class Harm:
    """A pickle of it makes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def damage(root: Path, rng: random.Random, canary: Path) -> list[str]:
    """Damage a few files of the dump at `root`; what was done, for a report.

    Args:
        canary: a path that must never come to be; pickles that are planted try to make it.
    """
    done: list[str] = []
    for _ in range(rng.choice((1, 1, 2, 5))):
        files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
        if not files:
            break
        path = rng.choice(files)
        how = rng.choice(_HOW[path.suffix] if path.suffix in _HOW and rng.random() < 0.6 else _ANY)
        done.append(f"{how.__name__} {path.relative_to(root)}")
        if how is plant_pickle:
            path.write_bytes(pickle.dumps([Harm(canary)] * rng.choice((1, 3)), protocol=rng.randrange(5)))
        else:
            with contextlib.suppress(ValueError, RecursionError, zipfile.BadZipFile, OSError):
                how(path, rng)
    return done


def cut_off(path: Path, rng: random.Random) -> None:
    """The end is missing."""
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data) + 1)])


def flip_bits(path: Path, rng: random.Random) -> None:
    """A few bits are others; in the first bytes, more often than not."""
    data = bytearray(path.read_bytes())
    end = min(len(data), rng.choice((64, 256, len(data))))
    for _ in range(rng.choice((1, 1, 8, 64)) if end else 0):
        data[rng.randrange(end)] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(data))


def splice(path: Path, rng: random.Random) -> None:
    """Some bytes are gone, doubled, or odd words stand among them."""
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 4))):
        at = rng.randrange(len(data) + 1)
        n = rng.randrange(1, 400)
        kind = rng.randrange(3)
        if kind == 0:
            del data[at : at + n]
        elif kind == 1:
            data[at:at] = data[at : at + n] * rng.choice((1, 5))
        else:
            data[at:at] = rng.choice(_WORDS)
    path.write_bytes(bytes(data))


def other_content(path: Path, rng: random.Random) -> None:
    """It holds what another file holds, or nothing, or the same byte again and again."""
    others = [other for other in path.parent.iterdir() if other.is_file() and not other.is_symlink()]
    kind = rng.randrange(4)
    if kind == 0:
        path.write_bytes(rng.choice(others).read_bytes())
    else:
        path.write_bytes(
            (b"", rng.choice((b"[", b"\0", b"\x80\x04")) * 100_000, b"\xff\xfe" + rng.randbytes(200))[kind - 1]
        )


def rename(path: Path, rng: random.Random) -> None:
    """It, or a folder above it, has an odd name."""
    if rng.random() < 0.3:  # a name that may still be taken for one of the tool's
        path.rename(path.with_name(path.name.replace(path.name[2:4], rng.choice(("\udcff", "Ñ", "..", "\x1b[31m")), 1)))
        return
    target = path if rng.random() < 0.5 else path.parent
    if target.parent.exists() and not (target.parent / (name := rng.choice(_NAMES))).exists():
        target.rename(target.parent / name)


def no_file(path: Path, rng: random.Random) -> None:
    """In its place is nothing, a folder, or a link that goes round or to a device."""
    path.unlink()
    kind = rng.randrange(4)
    if kind == 1:
        path.mkdir()
    elif kind == 2:
        path.symlink_to(path.parent)
    elif kind == 3:
        path.symlink_to("/dev/zero")


def plant_pickle(path: Path, rng: random.Random) -> None:
    """It is a pickle that does harm when it is loaded."""
    raise NotImplementedError(path, rng)  # `damage` knows where the harm would be seen


def odd_json(path: Path, rng: random.Random) -> None:
    """Values of the right place and the wrong kind; keys that are odd."""
    tree = json.loads(path.read_text(encoding="utf-8"))
    for _ in range(rng.choice((1, 3, 20))):
        here = tree
        for _ in range(rng.randrange(1, 9)):
            inner = _children(here)
            if not inner or (rng.random() < 0.15 and here is not tree):
                break
            above, key = here, rng.choice(inner)
            here = here[key]
            if rng.random() < 0.2:
                above[key] = rng.choice(_ODD)
                break
            if rng.random() < 0.05 and isinstance(above, dict):
                above[rng.choice((str(rng.choice(_ODD))[:300], f"{key}{key}", ""))] = above.pop(key)
                break
    path.write_text(json.dumps(tree), encoding="utf-8", errors="surrogatepass")


def deep_json(path: Path, rng: random.Random) -> None:
    """Something is nested as deep as no program goes."""
    n = rng.choice((100, 2_000, 200_000))
    text = path.read_text(encoding="utf-8")
    at = max(0, text.find(rng.choice(('"data"', ":", "["))))
    path.write_text(text[:at] + '"data": ' + rng.choice(("[", '{"a":')) * n + text[at:], encoding="utf-8")


def odd_cells(path: Path, rng: random.Random) -> None:
    """Cells of a table, or words of a line, are odd ones; lines are doubled and swapped."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    for _ in range(rng.choice((1, 10, 100)) if lines else 0):
        at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        cells = lines[at].split(",")
        cells[rng.randrange(len(cells))] = str(rng.choice(_ODD))
        lines[at] = rng.choice(
            (",".join(cells), lines[at] * 2, lines[other], lines[at][: rng.randrange(len(lines[at]) + 1)])
        )
    path.write_text("".join(lines), encoding="utf-8", errors="replace")


def odd_array(path: Path, rng: random.Random) -> None:
    """The header of an .npy file claims what is not so."""
    data = path.read_bytes()
    shape = rng.choice((f"({1 << 62},)", "(-1, 4)", "(1000000, 1000000)", "()", "(" + "1," * 70 + ")", "'x'", "(2.5,)"))
    descr = rng.choice(("<f4", "|O", "|V99999999", "<U100000", ">c16", "f", "[('a', 'O')]", "<f16", "|b1", "|S0"))
    quoted = descr if descr.startswith("[") else f"'{descr}'"
    text = f"{{'descr': {quoted}, 'fortran_order': {rng.choice(('True', 'False', '7'))}, 'shape': {shape}, }}"
    head = text.encode() + b" " * rng.randrange(60) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + data[128:])


def odd_archive(path: Path, rng: random.Random) -> None:
    """Members of a .pt file are damaged, renamed, doubled, or unpack to far more than they are."""
    with zipfile.ZipFile(path) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    at = rng.randrange(len(members))
    name, data = members[at]
    kind = rng.randrange(5)
    if kind == 0 and data:
        changed = bytearray(data)
        for _ in range(rng.choice((1, 4))):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        members[at] = (name, bytes(changed))
    elif kind == 1:
        members[at] = (rng.choice(("../x", "/etc/x", "a/data.pkl", "", "x" * 300)), data)
    elif kind == 2:
        members.append(members[at])
    elif kind == 3:
        members[at] = (name, b"\0" * _BOMB)
    else:
        del members[at]
    packed = zipfile.ZIP_DEFLATED if kind == 3 or rng.random() < 0.3 else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", packed) as archive:
        for each in members:
            with contextlib.suppress(ValueError, IndexError), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a name that is there already
                archive.writestr(*each)


def _children(here: Any) -> list[Any]:
    if isinstance(here, dict):
        return list(here)
    return list(range(len(here))) if isinstance(here, list) else []


def copied(sample: Path, to: Path) -> Path:
    """A copy of a sample to damage; a file gets a folder of its own."""
    if sample.is_dir():
        shutil.copytree(sample, to, symlinks=True)
        return to
    to.mkdir()
    shutil.copy(sample, to)
    return to / sample.name


_ANY: tuple[Damage, ...] = (cut_off, flip_bits, flip_bits, splice, splice, other_content, rename, no_file, plant_pickle)
_HOW: dict[str, tuple[Damage, ...]] = {
    ".json": (odd_json, odd_json, odd_json, deep_json), ".csv": (odd_cells,), ".ir": (odd_cells,), ".pkl": (odd_cells,),
    ".npy": (odd_array,), ".pt": (odd_archive,),
}  # fmt: skip
