"""Values of torch's tensors on the host, and in files: see hypocenter.tap.keeper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from hypocenter.tap.keeper import Keeper


class TensorKeeper(Keeper):
    """Copies values of torch's tensors to the host, and writes them."""

    @torch.no_grad()
    def on_host(self, tensor: Tensor, limit_bytes: int) -> Tensor | None:
        """Return a contiguous copy of the local values, complex numbers as pairs; None if it is beyond the limit."""
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

    def save(self, values: Mapping[str, Tensor], path: Path, about: dict[str, str]) -> None:
        """Write copies and text to a file; a kill leaves a whole file or none."""
        from safetensors.torch import save_file  # the training process must not need it at other levels

        part = path.with_suffix(".part")
        save_file(dict(values), part, metadata=about)
        part.replace(path)

    def flush(self, step: int) -> list[Path]:
        """Write what was kept since the last call as values of `step`; return the files written."""
        return self._flush(step, _own)


def _own(module: nn.Module) -> Iterator[tuple[str, Tensor, Tensor | None]]:
    return ((key, param, param.grad) for key, param in module._parameters.items() if param is not None)
