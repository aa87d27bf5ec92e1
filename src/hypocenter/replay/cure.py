"""The cure of a failed step: the smallest float32 island, verified by replay, and what else would have helped."""

from __future__ import annotations

from collections.abc import Sequence

from hypocenter.diagnose.evidence import Cure, Evidence
from hypocenter.nouns import Source
from hypocenter.replay.islands_search import Found, IslandSearch, Module
from hypocenter.replay.rehearsal import Rehearsal
from hypocenter.replay.remedies.fp32_lines import lines_in_float32
from hypocenter.tap.tracer import OpTracer

LOW_PRECISION = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
LOSS = "loss"  # the site of operations outside every module


def is_low_precision(tracer: OpTracer) -> bool:
    """Whether any operation of the step gave a low-precision result: otherwise float32 islands change nothing."""
    return any(dtype in LOW_PRECISION for node in tracer.nodes for dtype in node.dtypes)


class Cures:
    """Searches the cure of one failed step.

    Args:
        rehearsal: of the step.
        module: module path -> module.
        sites: paths of modules that own operations, in execution order.
    """

    def __init__(self, rehearsal: Rehearsal, module: Module, sites: Sequence[str]) -> None:
        self._rehearsal, self._module = rehearsal, module
        self._search = IslandSearch(rehearsal, module, sites)

    def find(self, evidence: Evidence, scales: Sequence[float | None]) -> Cure:
        """Search, verify, compare.

        Args:
            evidence: with origin and adjudication filled in.
            scales: loss scales at which the step should be finite, wanted ones first.
        """
        origin = evidence.origin
        if origin is None:
            return self._without_cure("cannot-tell", "the trace does not say where the failure starts")
        if origin.site == LOSS and origin.source is not None:
            return self._in_loss_code(origin.source, scales)
        if not evidence.float64.finite and not self._is_about_precision(scales):
            return self._without_cure(
                "no-cure", f"with all {self._search.n_candidates} modules in float32 the step is not finite either"
            )
        found = self._search.find(origin.site, scales)
        if found is None:
            return self._not_found(origin.source, scales)
        self._rehearsal.scale = found.scale
        lines = self._sufficient_lines(origin.source, found)
        return self._cured(found.targets, cast_back=found.cast_back, minimal=found.is_minimal, lines=lines)

    def _is_about_precision(self, scales: Sequence[float | None]) -> bool:
        for scale in scales:
            self._rehearsal.scale = scale
            if any(self._search.fixes_all(cast_back) for cast_back in (True, False)):
                return True
        return False

    def _in_loss_code(self, source: Source, scales: Sequence[float | None]) -> Cure:
        """Operations between the model and `backward` belong to no module: the line itself is the target."""
        for scale in scales:
            self._rehearsal.scale = scale
            if self._rehearsal.finite(float32_at=(source.file, source.line)):
                return self._cured((f"{source.file}:{source.line}",), minimal=True, lines=(source,))
        return self._without_cure("no-cure", f"with line {source.line} in float32 the step is not finite either")

    def _not_found(self, source: Source | None, scales: Sequence[float | None]) -> Cure:
        if self._search.is_out_of_budget:
            return self._without_cure(
                "cannot-tell",
                f"the search was ended after {self._rehearsal.n_replays} replays, as its budget was spent",
            )
        return self._without_cure(
            "no-cure", f"with all {self._search.n_candidates} modules in float32 the step is not finite either"
        )

    def _without_cure(self, status: str, why: str) -> Cure:
        return Cure(
            status=status,  # type: ignore[arg-type]
            replays=self._rehearsal.n_replays,
            seconds=self._rehearsal.seconds,
            n_candidates=self._search.n_candidates,
            n_microbatches=len(self._rehearsal.microbatches),
            why=(why,),
        )

    def _sufficient_lines(self, source: Source | None, found: Found) -> tuple[Source, ...]:
        """The blamed line, if it alone in float32 is enough: the operator-sized island."""
        if source is None or len(found.targets) != 1:
            return ()
        return (source,) if self._rehearsal.holds(lambda: lines_in_float32([source])) else ()

    def _cured(
        self, targets: tuple[str, ...], *, minimal: bool, lines: tuple[Source, ...], cast_back: bool = True
    ) -> Cure:
        rehearsal = self._rehearsal
        return Cure(
            status="cured",
            targets=targets,
            verified=True,
            cast_back=cast_back,
            minimal=minimal,
            replays=rehearsal.n_replays,
            seconds=rehearsal.seconds,
            n_candidates=self._search.n_candidates,
            n_params=len(rehearsal.scene.parameters),
            n_microbatches=len(rehearsal.microbatches),
            scale=rehearsal.scale,
            lines=lines,
            api=api_line(targets, cast_back=cast_back) if not _is_line(targets) else "",
        )


def api_line(targets: Sequence[str], *, cast_back: bool) -> str:
    """The island as one line of Python for the user's program."""
    names = ", ".join(f'"{target}"' for target in targets)
    return f"hypocenter.island(model, [{names}]{'' if cast_back else ', cast_back=False'})"


def _is_line(targets: Sequence[str]) -> bool:
    return any(":" in target for target in targets)
