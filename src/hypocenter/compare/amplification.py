"""By how much each module makes a relative error grow: where errors build up when no single place is to blame."""

from __future__ import annotations

import numpy as np

from hypocenter.compare.comparison import Amplification
from hypocenter.compare.judged import Judged
from hypocenter.nouns import Phase

_SHOWN = 20  # modules, the strongest first
_PORTS: dict[Phase, tuple[str, str]] = {"forward": ("in", "out"), "backward": ("grad_out", "grad_in")}


def amplifications(judged: Judged) -> tuple[Amplification, ...]:
    """The modules of a step whose output's relative error is the most times their inputs'."""
    found: list[Amplification] = []
    relative = np.where(np.isfinite(judged.distances.relative), judged.distances.relative, 0.0)
    for phase, (given, gives) in _PORTS.items():
        inputs, outputs = {}, {}
        rows = np.flatnonzero((judged.phase == phase) & (relative > 0.0))
        for at in rows.tolist():
            spot = judged.spots[at]
            side = outputs if spot.port.startswith(gives) else inputs if spot.port.startswith(given) else None
            key = spot.site, spot.call, int(judged.aligned.baseline.microbatch[at])
            if side is not None:
                side[key] = max(side.get(key, 0.0), float(relative[at]))
        best: dict[str, float] = {}
        for key, error in outputs.items():
            if key in inputs:
                best[key[0]] = max(best.get(key[0], 0.0), error / inputs[key])
        found += [Amplification(site=site, phase=phase, factor=factor) for site, factor in best.items()]
    return tuple(sorted(found, key=lambda one: -one.factor)[:_SHOWN])
