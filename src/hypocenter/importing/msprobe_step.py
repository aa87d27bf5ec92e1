"""One step of one rank of an msprobe dump: which call of which micro-batch each entry is, and where it stands.

msprobe counts calls of a module over the whole step, and calls of an API over the whole program: one more call slides
all later numbers. Here they are counted per module and micro-batch. A module that is called again while its backward
is still to come is a checkpoint's recompute; one that is called again after it begins a new micro-batch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from hypocenter.compare.naming.tables import unwrapped
from hypocenter.nouns import Phase

OPTIMIZER = "optimizer"  # parent of the APIs that an update calls
APART = 1 << 10  # between the orders of two entries: modules begin in between
_DEEPEST = 256  # modules within modules
_FEW = 64  # modules inside one that are looked at
Direction = Literal["forward", "backward", "parameters_grad", "debug"]
_MODULES = ("Module", "Cell")
_API = re.compile(r"([A-Za-z]\w*)\.(.+)\.(\d{1,12})\.(forward|backward)", re.DOTALL)
_MODULE = re.compile(r"(?:Module|Cell)\.(.+)\.(forward|backward|parameters_grad)\.(\d{1,12})", re.DOTALL)
_NO_CALL = re.compile(r"(?:Module|Cell)\.(.+)\.(parameters_grad)()", re.DOTALL)
_DEBUG = re.compile(r"(.+?)(_grad)?\.(\d{1,12})\.debug", re.DOTALL)
_NAME_AT_MOST = 4096  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The place of an entry: where it belongs."""

    site: str
    phase: Phase
    op: str
    module: str  # class of the module
    call: int
    microbatch: int
    recompute: bool
    order_in: int
    order_out: int


@dataclass(slots=True)
class Step:
    """What is known of the entries so far.

    Args:
        parents: entry name -> name of the module's entry that called it, as construct.json has it.
        sites: our names of modules.
        has_modules: APIs are ops of modules; without any (level L1) each API is a site of its own.
        last_backward: without parents (level L1), the entry after which APIs are those of the update, until a function
            of torch.nn.functional begins something else.
    """

    parents: Mapping[str, str | None]
    sites: Sites
    has_modules: bool
    last_backward: str = ""
    microbatch: int = 0
    n_entries: int = 0
    _counted: Counter[tuple[str, str, str, int, bool]] = field(default_factory=Counter)
    _forward: dict[tuple[str, int], Call] = field(default_factory=dict)  # of a path and the tool's number
    _done: dict[str, dict[int, bool]] = field(default_factory=dict)  # module -> call -> whether its backward has come
    _below: dict[str, list[str]] = field(default_factory=dict)  # module -> some of the modules in it
    _judged: dict[str, bool] = field(default_factory=dict)  # outermost entries in backward: whether it is a recompute
    _is_in_backward: bool = False
    _is_updating: bool = False
    _begins: dict[str, int] = field(default_factory=dict)  # entry name -> number of the first entry inside it
    _opened: Counter[int] = field(default_factory=Counter)  # modules that begin just before an entry

    def place(self, text: str, name: Name, *, has_gradient: bool) -> Call:
        """Return the place of the next entry.

        Args:
            text: its name, as written; `name` is the same taken apart.
            has_gradient: an output or a parameter of it requires one.
        """
        self.n_entries += 1
        parent = self.parents.get(text)
        above = self._above(text)
        order_in, order_out = self._orders(text, above, is_module=name.kind == "module")
        if name.direction == "backward":
            self._is_updating = text == self.last_backward
            return self._backward(name, text, parent, order_in, order_out)
        self._is_updating = self._is_updating and not name.path.startswith("Functional.")
        if parent == OPTIMIZER or self._is_updating:
            return self._made(name, "", "optimizer", self.microbatch, False, order_in, order_out)
        is_again = self._is_recompute(above[-1] if above else text)
        owner = self._owner(name, parent)
        call = self._made(name, owner, "forward", self.microbatch, is_again, order_in, order_out)
        self._forward[name.path, name.call] = call
        if has_gradient and name.kind == "module":
            self._watch(name)
        return call

    @property
    def is_in_backward(self) -> bool:
        """Whether an entry of backward was seen in this micro-batch."""
        return self._is_in_backward

    def between(self) -> int:
        """Return the order of something that stands at no module or API."""
        self.n_entries += 1
        return self.n_entries * APART

    def _backward(self, name: Name, text: str, parent: str | None, order_in: int, order_out: int) -> Call:
        self._is_in_backward = True
        if name.call in (calls := self._done.get(name.path, {})):
            calls[name.call] = True
        known = self._forward.get((name.path, name.call))
        if known is None:
            return self._made(name, self._owner(name, parent), "backward", self.microbatch, False, order_in, order_out)
        return Call(
            site=known.site, phase="backward", op=known.op, module=known.module, call=known.call,
            microbatch=known.microbatch, recompute=False, order_in=order_in, order_out=order_out,
        )  # fmt: skip

    def _made(
        self, name: Name, owner: str, phase: Phase, microbatch: int, recompute: bool, order_in: int, order_out: int
    ) -> Call:
        op = name.path if name.kind == "api" and (self.has_modules or phase == "optimizer") else ""
        module = name.module
        if name.kind == "module":
            site = self.sites.of(name.path)
        elif not op:
            site = name.path
        else:
            parsed = parse(owner) if owner else None
            site = self.sites.of(parsed.path) if parsed is not None and parsed.kind == "module" else ""
            module = parsed.module if parsed is not None else ""
        key = site, op, phase, microbatch, recompute
        number = self._counted[key]
        self._counted[key] += 1
        return Call(
            site=site, phase=phase, op=op, module=module, call=number, microbatch=microbatch, recompute=recompute,
            order_in=order_in, order_out=order_out,
        )  # fmt: skip

    def _owner(self, name: Name, parent: str | None) -> str:
        return parent or "" if name.kind == "api" else ""

    def _above(self, text: str) -> list[str]:
        """Return the entries around one, innermost first."""
        found: list[str] = []
        here = self.parents.get(text)
        while here and here != OPTIMIZER and len(found) < _DEEPEST and here not in found:
            found.append(here)
            here = self.parents.get(here)
        return found

    def _orders(self, text: str, above: list[str], *, is_module: bool) -> tuple[int, int]:
        """Return the orders of inputs and outputs; a module's entry is written last, but began before inner ones."""
        number = self.n_entries
        first = min(self._begins.pop(text, number), number)
        for name in above:
            self._begins.setdefault(name, first)
        if not is_module:
            return number * APART, number * APART + 1
        self._opened[first] += 1
        return first * APART - min(self._opened[first], _DEEPEST), number * APART + 1

    def _watch(self, name: Name) -> None:
        """Note a forward call whose backward is to come."""
        if name.path not in self._done:
            around = name.path
            for _ in range(_DEEPEST):
                around = around.rpartition(".")[0]
                inside = self._below.setdefault(around, [])
                if not around or len(inside) >= _FEW:
                    break
                inside.append(name.path)
        self._done.setdefault(name.path, {})[name.call] = False

    def _is_recompute(self, root: str) -> bool:
        """Return whether the outermost entry around a forward entry is a checkpoint's second call.

        Of a recompute no module inside has had its backward. The module itself may: its hook can fire before.
        """
        if not self._is_in_backward:
            return False
        if root in self._judged:
            return self._judged[root]
        name = parse(root)
        if name is None or name.kind != "module":
            return False
        inside = [self._done.get(path, {}) for path in (self._below.get(name.path) or [name.path])]
        states = [is_done for calls in inside for is_done in calls.values()]
        is_again = bool(states) and not any(states)
        if is_again:
            self._judged[root] = True
        elif (name.path, name.call - 1) in self._forward:
            self.microbatch += 1
            self._is_in_backward = False
            self._done, self._below, self._judged = {}, {}, {}
        return is_again


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """An entry's name, taken apart."""

    kind: Literal["api", "module", "debug"]
    path: str  # dotted name of the module; of an API `Functional.linear`
    module: str  # class of the module
    direction: Direction
    call: int  # as the tool counts


@lru_cache(maxsize=1 << 16)
def parse(text: str) -> Name | None:
    """Take a name apart; None for what is none of msprobe's."""
    if len(text) > _NAME_AT_MOST:
        return None
    if text.startswith(_MODULES):
        match = _MODULE.fullmatch(text) or _NO_CALL.fullmatch(text)
        if match:
            path, _, module = match[1].rpartition(".")
            return Name(kind="module", path=path or module, module=module, direction=match[2], call=int(match[3] or 0))  # type: ignore[arg-type]
    match = _API.fullmatch(text)
    if match:
        return Name(kind="api", path=f"{match[1]}.{match[2]}", module="", direction=match[4], call=int(match[3]))  # type: ignore[arg-type]
    match = _DEBUG.fullmatch(text)
    if match:
        direction: Direction = "debug"
        return Name(
            kind="debug", path=match[1], module="grad" if match[2] else "", direction=direction, call=int(match[3])
        )
    return None


class Sites:
    """Our names of modules: without what only says in what the model was wrapped.

    Args:
        paths: of all modules of the dump; a first part that all have in common is a wrapper's only if it is one's name.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        known = set(paths)
        firsts = {path.partition(".")[0] for path in known}
        self._is_wrapped = firsts <= {"module", "network"} and bool(firsts)
        is_list = firsts == {"0"} and len(known) > 1 and "0" in known
        self._list = "0." if is_list else ""
        self._known: dict[str, str] = {}

    def of(self, path: str) -> str:
        """Return the site of a module; "" is the model itself."""
        site = self._known.get(path)
        if site is None:
            site = self._known[path] = self._made(path)
        return site

    def _made(self, path: str) -> str:
        if self._list:
            path = "" if path == "0" else path.removeprefix(self._list)
        return unwrapped(path) if self._is_wrapped else unwrapped(f"x.{path}")[2:]
