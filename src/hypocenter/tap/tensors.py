"""Level `tensors`: the values themselves, of chosen sites and steps, as safetensors files below the rank's directory.

`tensors/step-000012/mb-0/<site>.safetensors` holds `in[0]`, `out[logits]`, `grad_in[0]`, `grad_out[0]`, ... of one
site in one micro-batch; `#1` is appended for the second call of the module, and so on. The last micro-batch's file also
holds the module's own parameters and their gradients (`weight`, `weight.grad`) as they are just before the update.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from hypocenter.tap.file_name import file_name
from hypocenter.tap.site import Site


class TensorKeeper:
    """Copies values to the host as they pass (one transfer each: this level waits for the device) and writes them.

    Set it as the `keeper` of a ModuleTap, which decides the sites; call `flush` before the update of each step.
    Nothing beyond `budget_bytes` is kept in one run.
    """

    def __init__(self, rank_dir: Path, *, budget_bytes: int, warn: Callable[[str], None]) -> None:
        self._dir = rank_dir / "tensors"
        self._left_bytes = budget_bytes
        self._warn = warn
        self._warned: set[str] = set()
        self._kept: dict[tuple[int, str], dict[str, Tensor]] = {}
        self._sites: dict[str, Site] = {}
        self._last: dict[str, int] = {}

    def keep(self, site: Site, port: str, call: int, microbatch: int, tensor: Tensor) -> None:
        """Copy one value."""
        self._sites[site.name] = site
        self._last[site.name] = max(microbatch, self._last.get(site.name, 0))
        self._copy(microbatch, site.name, f"{port}#{call}" if call else port, tensor)

    def flush(self, step: int) -> list[Path]:
        """Write what was kept since the last call as values of `step`; return the files written."""
        for name, microbatch in self._last.items():
            module = self._sites[name].ref()
            if module is not None:
                self._copy_parameters(module, name, microbatch)
        kept, self._kept, self._last, self._sites = self._kept, {}, {}, {}
        written = [self._write(step, microbatch, site, values) for (microbatch, site), values in kept.items()]
        return [path for path in written if path is not None]

    def _copy_parameters(self, module: nn.Module, site: str, microbatch: int) -> None:
        for key, param in module._parameters.items():
            if param is not None:
                self._copy(microbatch, site, key, param)
                if param.grad is not None:
                    self._copy(microbatch, site, f"{key}.grad", param.grad)

    def _copy(self, microbatch: int, site: str, key: str, tensor: Tensor) -> None:
        try:
            with torch.no_grad():
                values = _on_host(tensor, self._left_bytes)
        except Exception as error:
            self._warn_once(f"{key} of {site!r} cannot be kept: {error!r}", "copy")
            return
        if values is None:
            self._warn_once(f"{key} of {site!r} and what follows is not kept: the size budget is used up", "budget")
            return
        self._left_bytes -= values.nbytes
        self._kept.setdefault((microbatch, site), {})[key] = values

    def _write(self, step: int, microbatch: int, site: str, values: dict[str, Tensor]) -> Path | None:
        folder = self._dir / f"step-{step:06d}" / f"mb-{microbatch}"
        path = folder / f"{file_name(site)}.safetensors"
        part = path.with_suffix(".part")
        try:
            from safetensors.torch import save_file  # the training process must not need it at other levels

            folder.mkdir(parents=True, exist_ok=True)
            save_file(values, part, metadata={"site": site, "step": str(step), "microbatch": str(microbatch)})
            part.replace(path)  # a kill leaves a whole file or none
        except Exception as error:
            self._warn_once(f"{path} cannot be written, values are lost: {error!r}", "write")
            return None
        return path

    def _warn_once(self, text: str, kind: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            self._warn(text)


def _on_host(tensor: Tensor, limit_bytes: int) -> Tensor | None:
    """Return a contiguous copy of the local values, complex numbers as pairs; None if it is larger than the limit."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()  # type: ignore[operator]
    if hasattr(tensor, "wait") and type(tensor).__name__ == "AsyncCollectiveTensor":
        tensor = tensor.wait()  # type: ignore[operator]
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.numel() * tensor.element_size() > limit_bytes:
        return None
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor.resolve_neg())
