"""All remedies, the preferred first."""

from __future__ import annotations

from hypocenter.replay.remedies import bf16_island, clamp, fp32_island, lower_scale, prescale
from hypocenter.replay.remedies.kinds import RemedyKind

REMEDIES: tuple[RemedyKind, ...] = tuple(
    sorted(
        (fp32_island.KIND, bf16_island.KIND, prescale.KIND, lower_scale.KIND, clamp.KIND), key=lambda kind: kind.rank
    )
)
"""float32 island, bfloat16 island, prescaling, a lower loss scale, and, last, clamping."""
