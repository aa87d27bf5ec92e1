"""What is tried on a failed micro-batch: leaving samples out, and float32 islands."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hypocenter.diagnose.evidence import Cure, Evidence
from hypocenter.replay import samples
from hypocenter.replay.case import HIDDEN, Scene
from hypocenter.replay.cure.finder import Cures, is_low_precision
from hypocenter.replay.cure.islands import sites_of
from hypocenter.replay.cure.rehearsal import Rehearsal
from hypocenter.replay.engine import Replayer
from hypocenter.replay.tracing import Tracing
from hypocenter.tap.names import NameMap
from hypocenter.tap.tape import Microbatch


class Trials:
    """Replays one micro-batch in variations."""

    def __init__(self, scene: Scene, microbatch: Microbatch, replayer: Replayer, names: NameMap) -> None:
        self._scene, self._microbatch, self._replayer, self._names = scene, microbatch, replayer, names
        self._tracing = Tracing(replayer, names)

    def samples(self, evidence: Evidence, mask: torch.Tensor | None) -> Evidence:
        """Name the batch rows; where a replay can tell, say whether the step is finite without them.

        Args:
            evidence: with leaf and origin filled in.
            mask: bad elements of the blamed tensor.
        """
        n_rows = samples.batch_size(self._replayer.batch_tensors(self._microbatch))
        rows = samples.rows_of(mask.cpu(), n_rows) if mask is not None else ()
        if self._scene.case.trigger in HIDDEN:  # such a step is finite with and without them
            return samples.named(evidence, rows, n_rows, None)

        def finite_with(kept: Sequence[int]) -> bool:
            rows = (n_rows, torch.tensor(kept))
            seed_scale = self._scene.case.seed_scale
            return self._replayer.run(self._microbatch, self._scene.parameters, rows=rows, seed_scale=seed_scale).finite

        return samples.named(evidence, rows, n_rows, finite_with)

    def cure(self, evidence: Evidence, before: Cure | None) -> Cure | None:
        """The search for the smallest float32 island; None when none was wanted.

        Args:
            before: the cure of an earlier step that failed at the same place.
        """
        case, tracer = self._scene.case, self._scene.tracer
        if case.budget.replays < 1 or (case.trigger in HIDDEN and not evidence.float64.finite):
            return None
        if evidence.leaf is not None:
            return Cure(status="no-cure", why=(f"the value was not finite before any operation: {evidence.leaf.name}",))
        if not is_low_precision(tracer):
            return Cure(status="no-cure", why=("every operation of the step was in float32 or wider already",))
        rehearsal = Rehearsal(self._scene, self._replayer, self._tracing, case.budget)
        cures = Cures(rehearsal, self._module, sites_of(tracer), self._names.roots())
        again = cures.again(before, evidence) if before is not None else None
        return again if again is not None else cures.find(evidence, case.scales)

    def _module(self, path: str) -> torch.nn.Module | None:
        modules = (module for root in self._names.roots() for module in root.modules())
        return next((module for module in modules if self._names.module_name(module) == path), None)
