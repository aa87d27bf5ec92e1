"""Run modules in float32 inside autocast or inside a half-precision model, for the length of a replay."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence

import torch

from hypocenter.diagnose.evidence import Evidence
from hypocenter.replay.remedies.islands import put_module
from hypocenter.replay.remedies.kinds import RemedyKind


@contextlib.contextmanager
def island(
    modules: Sequence[torch.nn.Module], *, cast_back: bool | None, dtype: torch.dtype = torch.float32
) -> Generator[None, None, None]:
    """Let the modules compute in float32 in this block: inputs and parameters are cast up, autocast is off inside.

    Args:
        modules: each with all its submodules.
        cast_back: give the result the low precision that the inputs had; otherwise it stays float32, which is what
            lets a value above the format's maximum survive until a norm brings it back. None: only outside autocast.
        dtype: of the island; bfloat16 and float64 are possible too.
    """
    layers = [layer for module in modules for layer in put_module(module, dtype=dtype, cast_back=cast_back)]
    try:
        yield
    finally:
        for layer in reversed(layers):
            layer.take_off()


def advice(target: str, *, cast_back: bool) -> str:
    """Say the change in words that a person can apply."""
    where = target or "the model"
    tail = "" if cast_back else ", and leave its output in float32"
    return f"run {where} in float32: torch.autocast(enabled=False) around it, inputs cast with .float(){tail}"


def applies(evidence: Evidence | None) -> bool:
    """Return whether it may help: to everything that was computed in a format narrower than float32."""
    if evidence is None or evidence.origin is None:
        return True
    facts = (*evidence.origin.outputs, *evidence.origin.inputs)
    return evidence.float64.finite and any(fact.dtype.startswith(("float16", "bfloat16", "float8")) for fact in facts)


def text(targets: Sequence[str]) -> str:
    """Say the change in words."""
    return advice(", ".join(target or "the model" for target in targets), cast_back=True)


KIND = RemedyKind(
    name="fp32-island", order=0, applies=applies, around=lambda modules: island(modules, cast_back=True), text=text
)
"""The result in the format of the inputs. A search also tries `island(modules, cast_back=False)`."""
