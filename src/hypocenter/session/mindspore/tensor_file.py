"""What level `tensors` copied to the host, as a safetensors file. Loaded only where something is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hypocenter.tap.mindspore.tensors import Bits


def write_bits(tensors: Mapping[str, Bits], path: Path, metadata: dict[str, str]) -> None:
    """Write tensors and text to a file, which appears only when it is complete. Raises OSError, HypocenterError."""
    from hypocenter.compare.weights.writer import write_file
    from hypocenter.session.mindspore.imposed.tensors import OnHost

    held = {
        name: OnHost(shape=tuple(bits.array.shape), dtype=bits.dtype, bits=bits.array) for name, bits in tensors.items()
    }
    write_file(dict(held), path, metadata)
