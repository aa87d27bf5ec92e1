"""Level `tensors`: the values themselves, of chosen sites and steps, in the files that tap.tensors makes of torch's.

`tensors/step-000012/mb-0/<site>.safetensors` holds `in[0]`, `out[logits]`, `grad_in[0]`, `grad_out[0]`, ... of one
site in one micro-batch; `#1` is appended for the second call of the cell, and so on. The last micro-batch's file also
holds the cell's own parameters and their gradients (`weight`, `weight.grad`) as they are just before the update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hypocenter.tap.file_name import file_name
from hypocenter.tap.mindspore.names import own_parameters
from hypocenter.tap.site import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Bits:
    """A copy of a tensor on the host: its format in torch's words, and its numbers (bfloat16: as uint16)."""

    dtype: str
    array: NDArray[Any]


Write = Callable[[Mapping[str, Bits], Path, dict[str, str]], None]
"""Writes tensors and text to a safetensors file, that appears whole."""


class TensorKeeper:
    """Copies values to the host as they pass (one transfer each: this level waits for the device) and writes them.

    Set it as the `keeper` of a CellTap, which decides the sites; call `flush` before the update of each step.
    Nothing beyond `budget_bytes` is kept in one run.
    """

    def __init__(self, rank_dir: Path, *, budget_bytes: int, write: Write, warn: Callable[[str], None]) -> None:
        self._dir = rank_dir / "tensors"
        self._left_bytes = budget_bytes
        self._write_file, self._warn = write, warn
        self._warned: set[str] = set()
        self._kept: dict[tuple[int, str], dict[str, Bits]] = {}
        self._sites: dict[str, Site] = {}
        self._last: dict[str, int] = {}

    def keep(self, site: Site, port: str, call: int, microbatch: int, tensor: Any) -> None:
        """Copy one value."""
        self._sites[site.name] = site
        self._last[site.name] = max(microbatch, self._last.get(site.name, 0))
        self._copy(microbatch, site.name, f"{port}#{call}" if call else port, tensor)

    def flush(self, step: int, gradients: Mapping[int, Any]) -> list[Path]:
        """Write what was kept since the last call as values of `step`; return the files written.

        Args:
            gradients: id of a parameter -> its gradient.
        """
        for name, microbatch in self._last.items():
            cell = self._sites[name].ref()
            for key, parameter in own_parameters(cell).items() if cell is not None else ():
                if parameter is not None:
                    self._copy(microbatch, name, key, parameter)
                    if (gradient := gradients.get(id(parameter))) is not None:
                        self._copy(microbatch, name, f"{key}.grad", gradient)
        kept, self._kept, self._last, self._sites = self._kept, {}, {}, {}
        written = [self._write(step, microbatch, site, values) for (microbatch, site), values in kept.items()]
        return [path for path in written if path is not None]

    def _copy(self, microbatch: int, site: str, key: str, tensor: Any) -> None:
        try:
            if int(tensor.nbytes) > self._left_bytes:
                self._warn_once(f"{key} of {site!r} and what follows is not kept: the size budget is used up", "budget")
                return
            bits = bits_of(tensor)
        except Exception as error:
            self._warn_once(f"{key} of {site!r} cannot be kept: {error!r}", "copy")
            return
        self._left_bytes -= bits.array.nbytes
        self._kept.setdefault((microbatch, site), {})[key] = bits

    def _write(self, step: int, microbatch: int, site: str, values: dict[str, Bits]) -> Path | None:
        folder = self._dir / f"step-{step:06d}" / f"mb-{microbatch}"
        path = folder / f"{file_name(site)}.safetensors"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._write_file(values, path, {"site": site, "step": str(step), "microbatch": str(microbatch)})
        except Exception as error:
            self._warn_once(f"{path} cannot be written, values are lost: {error!r}", "write")
            return None
        return path

    def _warn_once(self, text: str, kind: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            self._warn(text)


def bits_of(tensor: Any) -> Bits:
    """Copy a tensor to the host; complex numbers as pairs in a last dimension."""
    array = np.array(tensor.asnumpy(), order="C")
    if array.dtype.name == "bfloat16":
        return Bits(dtype="bfloat16", array=array.view(np.uint16))
    if array.dtype.kind == "c":
        parts = np.stack([np.real(array), np.imag(array)], axis=-1)
        return Bits(dtype=parts.dtype.name, array=parts)
    return Bits(dtype=array.dtype.name, array=array)
