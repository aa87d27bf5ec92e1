"""What the names of msprobe's entries say: `Functional.linear.3.forward`, `Module.a.b.Linear.forward.0`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from hypocenter.compare.naming.tables import unwrapped

Direction = Literal["forward", "backward", "parameters_grad", "debug"]
_MODULES = ("Module", "Cell")
_API = re.compile(r"([A-Za-z]\w*)\.(.+)\.(\d{1,12})\.(forward|backward)", re.DOTALL)
_MODULE = re.compile(r"(?:Module|Cell)\.(.+)\.(forward|backward|parameters_grad)\.(\d{1,12})", re.DOTALL)
_NO_CALL = re.compile(r"(?:Module|Cell)\.(.+)\.(parameters_grad)()", re.DOTALL)
_DEBUG = re.compile(r"(.+?)(_grad)?\.(\d{1,12})\.debug", re.DOTALL)
_NAME_AT_MOST = 4096  # characters


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
    """A name taken apart; None for what is none of msprobe's."""
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
        """The site of a module; "" is the model itself."""
        site = self._known.get(path)
        if site is None:
            site = self._known[path] = self._made(path)
        return site

    def _made(self, path: str) -> str:
        if self._list:
            path = "" if path == "0" else path.removeprefix(self._list)
        return unwrapped(path) if self._is_wrapped else unwrapped(f"x.{path}")[2:]
