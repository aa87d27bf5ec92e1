"""What is tried on a failed micro-batch: leaving samples out, and remedies."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Any

import torch

from hypocenter.diagnose.evidence import Evidence
from hypocenter.diagnose.origin import blame, killed_infinities
from hypocenter.nouns import Remedy
from hypocenter.replay import adjudicate, cures, samples
from hypocenter.replay.case import HIDDEN, Scene
from hypocenter.replay.engine import Replayer
from hypocenter.replay.tracing import Tracing
from hypocenter.tap.names import NameMap
from hypocenter.tap.tape import Microbatch

PATIENCE_S = 20.0  # seconds the user's job may wait while rows are tried one by one


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
        evidence = replace(evidence, n_samples=n_rows)
        if n_rows < 1 or evidence.leaf_kind in ("param", "buffer"):
            return evidence
        rows = samples.rows_of(mask, n_rows) if mask is not None else ()
        if self._scene.case.trigger in HIDDEN:  # such a step is finite with and without them
            return replace(evidence, samples=rows)

        def finite_with(kept: torch.Tensor) -> bool:
            return self._replayer.run(self._microbatch, self._scene.parameters, rows=(n_rows, kept)).finite

        started = time.perf_counter()
        check = samples.confirmed(rows, n_rows, finite_with) if 0 < len(rows) < n_rows else None
        took_s = time.perf_counter() - started
        if not check and took_s * n_rows < PATIENCE_S:
            with contextlib.suppress(Exception):  # a model that wants exactly this batch size
                alone = samples.rows_alone(n_rows, finite_with)
                if 0 < len(alone) < n_rows and samples.confirmed(alone, n_rows, finite_with):
                    return replace(evidence, samples=alone, samples_confirmed=True)
        return replace(evidence, samples=rows, samples_confirmed=check)

    def remedies(self, evidence: Evidence) -> tuple[Remedy, ...]:
        """Cures for what the evidence shows, verified ones first."""
        return cures.propose(
            evidence,
            self._module,
            cured=lambda around: self._shows_no_more(around=around),
            cured_at=lambda file, line: self._shows_no_more(float32_at=(file, line)),
            next_site=self._next_site,
        )

    def _shows_no_more(self, **how: Any) -> bool:
        try:
            if self._scene.case.trigger not in HIDDEN:
                return self._replayer.run(self._microbatch, self._scene.parameters, **how).finite
            tracer, replayed = self._tracing.run(self._microbatch, **how)
            still = (adjudicate.rerun_float64(tracer.nodes[k.origin]) for k in killed_infinities(tracer.trace()))
            return replayed.finite and not any(rerun.finite for rerun in still)
        except Exception:  # a cure that does not even run (dtype mismatch downstream) is no cure
            return False

    def _next_site(self, around: contextlib.AbstractContextManager[Any]) -> str | None:
        try:
            tracer, replayed = self._tracing.run(self._microbatch, around=around)
        except Exception:
            return None
        targets = [tracer.edge_to(t) for t in (*replayed.values, *replayed.grads) if t is not None]
        found = blame(tracer.trace(), targets)
        return None if found is None or found.origin is None else tracer.nodes[found.origin].place.site

    def _module(self, path: str) -> torch.nn.Module | None:
        modules = (module for root in self._names.roots() for module in root.modules())
        return next((module for module in modules if self._names.module_name(module) == path), None)
