"""Writes the values of one step of a dump where a recording of level `tensors` has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from hypocenter.compare.values.recorded import file_stem
from hypocenter.compare.weights.checkpoint import CheckpointError, Tensor
from hypocenter.compare.weights.elements import SAFETENSORS
from hypocenter.compare.weights.writer import write_file
from hypocenter.errors import HypocenterError

Held = dict[tuple[int, str], dict[str, Tensor]]
"""By micro-batch and site, by key: where the values lie."""

_FLOATS = frozenset(SAFETENSORS.values())


def hold(held: Held, site: str, key: str, microbatch: int, tensor: Tensor) -> None:
    """Add a tensor, if a recording may have it."""
    if tensor.dtype in _FLOATS and not tensor.dtype.startswith("complex"):
        held.setdefault((microbatch, site), {})[key] = tensor


def write_values(folder: Path, step: int, held: Held, problem: Callable[[str], None]) -> int:
    """Write what is held of a step, read part by part from the files of the dump; how many tensors.

    Raises:
        HypocenterError: the files cannot be written.
    """
    n = 0
    for (microbatch, site), values in held.items():
        into = folder / f"step-{step:06d}" / f"mb-{microbatch}"
        n += _write_file(into / f"{file_stem(site)}.safetensors", values, site, problem)
    return n


def _write_file(path: Path, values: Mapping[str, Tensor], site: str, problem: Callable[[str], None]) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(dict(values), path, {"site": site})
        return len(values)
    except CheckpointError as error:  # one of the dump's files has become unreadable
        problem(f"values of {site} are left out: {error.what} ({error.why})")
        path.with_name(f".{path.name}.part").unlink(missing_ok=True)
    except OSError as error:
        raise HypocenterError("the run cannot be written", where=str(path), why=str(error)) from error
    return 0
