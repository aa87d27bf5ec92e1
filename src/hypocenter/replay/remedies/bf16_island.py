"""Run modules in bfloat16 where the rest is float16: float32's range, with fewer digits than float16."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hypocenter.diagnose.evidence import Evidence
from hypocenter.replay.remedies.fp32_island import island
from hypocenter.replay.remedies.kinds import RemedyKind


def applies(evidence: Evidence | None) -> bool:
    """Return whether it may help: to float16 only, as what overflows bfloat16 overflows float32 too."""
    if evidence is None or evidence.origin is None:
        return True
    facts = (*evidence.origin.outputs, *evidence.origin.inputs)
    return evidence.float64.finite and any(fact.dtype == "float16" for fact in facts)


def text(targets: Sequence[str]) -> str:
    """Say the change in words."""
    where = ", ".join(target or "the model" for target in targets)
    return (
        f"run {where} in bfloat16: hypocenter.island(model, {list(targets)!r}, dtype=torch.bfloat16, cast_back=False); "
        "as fast as float16, but with 8 significant bits instead of 11"
    )


KIND = RemedyKind(
    name="bf16-island",
    order=1,
    applies=applies,
    around=lambda modules: island(modules, cast_back=None, dtype=torch.bfloat16),
    text=text,
)
