"""What the names of MindSpore's Dump say: of a file, and the scope of an operator within the cells of a network."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from hypocenter.compare.naming.tables import unwrapped

IO = Literal["input", "output"]
PARAMETER = "Parameter"  # stands where others have the type of an operator
_NAME_AT_MOST = 4096  # characters
# The name itself may hold dots: everything behind it is told from the right.
_FILE = re.compile(
    r"([^./]{1,200})\.(.+)\.(\d{1,12})\.(\d{1,12})\.(\d{1,20})\.(input|output)\.(\d{1,6})((?:\.[^.]*)*)\.npy"
)
_DTYPE = re.compile(r"(?:DT_)?((?:u?int|float|bfloat|complex|bool|hif|e\dm)[\w]*)", re.IGNORECASE)
_DTYPES = {"float": "float32", "double": "float64", "half": "float16", "bf16": "bfloat16"}
_NUMBER = re.compile(r"-op(\d{1,12})")
_FLAT = re.compile(r"([\w.]+?)-([A-Za-z][A-Za-z0-9]*)(?:_|$)")
_OUTER = ("Default", "Expand")  # of every scope, and of operators that were put in place of others
_BACKWARD, _RECOMPUTE = "Gradients", "recompute_"
_OPTIMIZERS = frozenset({"optimizer", "_optimizer", "opt"})
_LOSSES = frozenset({"_loss_fn", "loss_fn", "_loss", "loss"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FileName:
    """The name of a dumped tensor, taken apart."""

    op_type: str
    name: str  # of the operator, with _ for / and .
    time_us: int
    io: IO
    slot: int
    dtype: str = ""  # as labelled: float32; empty when the name has none

    @property
    def number(self) -> int:
        """The number of the operator among those of its type and scope; -1 when the name has none."""
        return number_of(self.name)


def parse_file(name: str) -> FileName | None:
    """Take a file's name apart; None for what is no dumped tensor."""
    found = _FILE.fullmatch(name) if len(name) <= _NAME_AT_MOST else None
    if found is None:
        return None
    rest = found[8].split(".")
    dtype = next((d for d in (dtype_of(word) for word in reversed(rest)) if d), "")
    io: IO = "input" if found[6] == "input" else "output"
    return FileName(
        op_type=found[1], name=found[2], time_us=int(found[5]), io=io, slot=int(found[7]), dtype=dtype
    )  # fmt: skip


def dtype_of(word: str) -> str:
    """Return our name of a dtype such as `Float32`, `FLOAT16`, `DT_BF16`, `float`; empty for another word."""
    found = _DTYPE.fullmatch(word.strip())
    text = (found[1] if found else word.strip()).lower()
    if text in _DTYPES:
        return _DTYPES[text]
    return text if found else ""


def number_of(name: str) -> int:
    """Return the number behind the last `-op`; -1 when there is none."""
    found = _NUMBER.fullmatch(name[name.rfind("-op") :]) if "-op" in name else None
    return int(found[1]) if found else -1


def stem_of(name: str) -> str:
    """Return a name without its number."""
    return name[: name.rfind("-op")] if number_of(name) >= 0 else name


def flat(full: str) -> str:
    """Return what a file's name has in the place of a full name with its scope."""
    return re.sub(r"[./\\ ]", "_", full)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Where an operator stands."""

    kind: Literal["forward", "loss", "backward", "optimizer"]
    cells: tuple[tuple[str, str], ...]  # attribute and class of each cell, outermost first
    recompute: bool = False

    @property
    def site(self) -> str:
        """The cell, as a user names it; "" is the network itself."""
        return site_of(tuple(name for name, _ in self.cells))

    @property
    def kind_of_cell(self) -> str:
        """The class of the innermost cell."""
        return self.cells[-1][1] if self.cells else ""


@lru_cache(maxsize=1 << 16)
def site_of(names: tuple[str, ...]) -> str:
    """Return the site of a path of attributes, without what only wraps the network."""
    return unwrapped(".".join(names))


@lru_cache(maxsize=1 << 16)
def scope_of(full: str) -> Scope:
    """Return the scope in a full name: `Default/network-WithLossCell/_backbone-Net/fc1-Dense/BiasAdd-op0`."""
    parts = full.split("/")[:-1]
    return _scope([(name, kind) for name, _, kind in (part.partition("-") for part in parts)])


@lru_cache(maxsize=1 << 16)
def scope_of_flat(name: str, op_type: str) -> Scope:
    """Return the scope in a name whose parts are joined by `_`; it is found by the classes in it."""
    text = re.sub(r"-op\d+$", "", name)
    text = text[: -len(op_type)] if text.endswith(op_type) else text.rpartition("_")[0]
    parts: list[tuple[str, str]] = []
    for outer in (_BACKWARD, "recompute_Default", *_OUTER):
        if text.startswith(f"{outer}_"):
            parts.append((outer, ""))
            text = text[len(outer) + 1 :]
    at = 0
    while (found := _FLAT.match(text, at)) is not None:
        parts.append((found[1], found[2]))
        at = found.end()
    return _scope(parts)


def _scope(parts: list[tuple[str, str]]) -> Scope:
    is_backward = bool(parts) and parts[0][0] == _BACKWARD
    recompute = any(name.startswith(_RECOMPUTE) and not kind for name, kind in parts)
    cells = tuple(
        (name, kind) for name, kind in parts
        if name and (kind or not (name in (*_OUTER, _BACKWARD) or name.startswith((_RECOMPUTE, "Grad_"))))
    )  # fmt: skip
    if is_backward:
        return Scope(kind="backward", cells=cells)
    if any(name in _OPTIMIZERS for name, _ in cells):
        return Scope(kind="optimizer", cells=cells)
    first = site_of(tuple(name for name, _ in cells)).partition(".")[0]
    return Scope(kind="loss" if first in _LOSSES else "forward", cells=cells, recompute=recompute)
