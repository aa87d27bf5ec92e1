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

from hypocenter.tap import patches
from hypocenter.tap.patches import put_back


class Patches(patches.Patches):
    """Patches of one session.

    Attributes:
        on_compile: called when the compiler was asked for something, with the executor's function or cell.
    """

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0

    def attach(self) -> Callable[[], None]:
        """Watch the compilers; returns what takes every patch off."""
        for name in ("_JitExecutor", "_CellGraphExecutor"):
            compiler = getattr(api, name, None)
            if compiler is not None and "compile" in vars(compiler):
                self.wrap(compiler, "compile", self._unseen)
        return self.undo

    @contextlib.contextmanager
    def off(self) -> Generator[None, None, None]:
        """Take all patches off in this context: for what reads sources, and for what must not look like training."""
        self._depth += 1
        if self._depth == 1:
            for owner, name, had, ours in reversed(self.held):
                if name != "compile":
                    put_back(owner, name, had, ours)
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                for owner, name, _, ours in self.held:
                    if name != "compile":
                        setattr(owner, name, ours)

    def _unseen(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile(*args: Any, **kwargs: Any) -> Any:
            with self.off():
                return original(*args, **kwargs)

        return compile
