"""Methods of MindSpore's classes that call us, and that its graph compiler never sees.

The compiler reads the source of what it compiles, so a patched method would be compiled in place of the program's. All
patches therefore come off while it works, and go on again after it. Only methods of classes are patched, never
functions of modules: `from mindspore.ops import f` would keep ours for ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

from mindspore.common import api  # pyright: ignore[reportMissingImports]

_MISSING = object()


class Patches:
    """Patches of one session.

    Attributes:
        on_compile: called when the compiler was asked for something, with the executor's function or cell.
    """

    def __init__(self) -> None:
        self._held: list[tuple[type, str, Any, Any]] = []  # (class, name, what it had itself or _MISSING, ours)
        self._is_on = True
        self._depth = 0

    def attach(self) -> Callable[[], None]:
        """Watch the compilers; returns what takes every patch off."""
        for name in ("_JitExecutor", "_CellGraphExecutor"):
            compiler = getattr(api, name, None)
            if compiler is not None and "compile" in vars(compiler):
                self.wrap(compiler, "compile", self._unseen)
        return self.undo

    def wrap(self, owner: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace `owner.name` with `make(original)`; the original may be inherited."""
        had = vars(owner).get(name, _MISSING)
        ours = make(getattr(owner, name))
        self._held.append((owner, name, had, ours))
        setattr(owner, name, ours)

    def undo(self) -> None:
        """Take all off for good. Safe to call twice."""
        held, self._held = self._held, []
        for owner, name, had, ours in reversed(held):
            _put_back(owner, name, had, ours)

    @contextlib.contextmanager
    def off(self) -> Generator[None, None, None]:
        """The classes are as MindSpore made them. For what reads sources, and for what must not look like training."""
        self._depth += 1
        if self._depth == 1:
            for owner, name, had, ours in reversed(self._held):
                if name != "compile":
                    _put_back(owner, name, had, ours)
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                for owner, name, _, ours in self._held:
                    if name != "compile":
                        setattr(owner, name, ours)

    def _unseen(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile(*args: Any, **kwargs: Any) -> Any:
            with self.off():
                return original(*args, **kwargs)

        return compile


def _put_back(owner: type, name: str, had: Any, ours: Any) -> None:
    if vars(owner).get(name) is not ours:
        return  # somebody patched over us: theirs stays
    if had is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, had)
