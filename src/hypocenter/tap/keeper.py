"""Level `tensors`: the values themselves, of chosen sites and steps, as safetensors files below the rank's directory.

`tensors/step-000012/mb-0/<site>.safetensors` holds `in[0]`, `out[logits]`, `grad_in[0]`, `grad_out[0]`, ... of one
site in one micro-batch; `#1` is appended for the second call of the module or cell, and so on. The last micro-batch's
file also holds its own parameters and their gradients (`weight`, `weight.grad`) as they are just before the update.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hypocenter.tap.site import Site

ROOT_FILE = "(root)"  # the outermost module's site has no name


def file_name(site: str) -> str:
    """Return the site as a file's name: characters that a file system may refuse are replaced."""
    return re.sub(r"[^\w.#()\[\]-]", "_", site)[:200] or ROOT_FILE


class Keeper:
    """Copies values to the host as they pass (one transfer each: this level waits for the device) and writes them.

    Set it as the `keeper` of a tap, which decides the sites; call `flush` before the update of each step. Nothing
    beyond `budget_bytes` is kept in one run. A framework says how a tensor is copied, and how copies are written.
    """

    def __init__(self, rank_dir: Path, *, budget_bytes: int, warn: Callable[[str], None]) -> None:
        self._dir = rank_dir / "tensors"
        self._left_bytes = budget_bytes
        self._warn = warn
        self._warned: set[str] = set()
        self._kept: dict[tuple[int, str], dict[str, Any]] = {}
        self._sites: dict[str, Site] = {}
        self._last: dict[str, int] = {}

    def on_host(self, tensor: Any, limit_bytes: int) -> Any:
        """Return a copy, which tells its `nbytes`; None if it is larger than the limit."""
        raise NotImplementedError

    def save(self, values: Mapping[str, Any], path: Path, about: dict[str, str]) -> None:
        """Write copies and text to a safetensors file, which appears whole."""
        raise NotImplementedError

    def keep(self, site: Site, port: str, call: int, microbatch: int, tensor: Any) -> None:
        """Copy one value."""
        self._sites[site.name] = site
        self._last[site.name] = max(microbatch, self._last.get(site.name, 0))
        self._copy(microbatch, site.name, f"{port}#{call}" if call else port, tensor)

    def _flush(self, step: int, own: Callable[[Any], Iterable[tuple[str, Any, Any]]]) -> list[Path]:
        """Write what was kept since the last call as values of `step`; return the files written.

        Args:
            own: a module -> names of its own parameters, with the parameter and its gradient, or None.
        """
        for name, microbatch in self._last.items():
            module = self._sites[name].ref()
            for key, parameter, gradient in own(module) if module is not None else ():
                self._copy(microbatch, name, key, parameter)
                if gradient is not None:
                    self._copy(microbatch, name, f"{key}.grad", gradient)
        kept, self._kept, self._last, self._sites = self._kept, {}, {}, {}
        written = [self._write(step, microbatch, site, values) for (microbatch, site), values in kept.items()]
        return [path for path in written if path is not None]

    def _copy(self, microbatch: int, site: str, key: str, tensor: Any) -> None:
        try:
            values = self.on_host(tensor, self._left_bytes)
        except Exception as error:
            self._warn_once(f"{key} of {site!r} cannot be kept: {error!r}", "copy")
            return
        if values is None:
            self._warn_once(f"{key} of {site!r} and what follows is not kept: the size budget is used up", "budget")
            return
        self._left_bytes -= values.nbytes
        self._kept.setdefault((microbatch, site), {})[key] = values

    def _write(self, step: int, microbatch: int, site: str, values: dict[str, Any]) -> Path | None:
        folder = self._dir / f"step-{step:06d}" / f"mb-{microbatch}"
        path = folder / f"{file_name(site)}.safetensors"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.save(values, path, {"site": site, "step": str(step), "microbatch": str(microbatch)})
        except Exception as error:
            self._warn_once(f"{path} cannot be written, values are lost: {error!r}", "write")
            return None
        return path

    def _warn_once(self, text: str, kind: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            self._warn(text)
