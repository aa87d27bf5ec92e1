"""Which cells, at the least, have to compute in float32 for the failed step to be finite: tried in replays."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Sequence
from typing import Any

from mindspore._c_expression import MixedPrecisionType  # pyright: ignore[reportMissingImports]

from hypocenter.diagnose.evidence import Cure, Evidence
from hypocenter.nouns import Remedy
from hypocenter.replay import samples
from hypocenter.replay.cure.search import OutOfBudget, smallest
from hypocenter.replay.mindspore.engine import Replayer
from hypocenter.replay.mindspore.trace import OpTracer
from hypocenter.replay.mindspore.tracing import blamed, traced
from hypocenter.tap.mindspore.names import NameMap
from hypocenter.tap.mindspore.tape import GradCall

MAX_ROUNDS = 8
PATIENCE_S = 20.0  # seconds the user's job may wait
_LOW = ("float16", "bfloat16")


@contextlib.contextmanager
def island(cell: Any) -> Generator[None, None, None]:
    """Within this block a cell and all in it compute in float32, as after `cell.to_float(ms.float32)`."""
    before: list[tuple[Any, Any]] = [(each, each.mixed_precision_type) for _, each in cell.cells_and_names()]
    try:
        for each, _ in before:
            each.mixed_precision_type = MixedPrecisionType.FP32
        yield
    finally:
        for each, kind in before:
            each.mixed_precision_type = kind


def search(
    evidence: Evidence,
    tracer: OpTracer,
    replayer: Replayer,
    names: NameMap,
    microbatches: Sequence[GradCall],
    *,
    seed_scale: float,
) -> Cure | None:
    """The smallest set of cells whose float32 makes every micro-batch of the step finite.

    Args:
        evidence: with origin or leaf filled in.
        tracer: of the replay that the blame is from.
        replayer: of the step.
        names: the user's names.
        microbatches: of the step.
        seed_scale: multiplies what backward starts from.
    """
    if evidence.leaf is not None:
        return Cure(status="no-cure", why=(f"the value was not finite before any operation: {evidence.leaf.name}",))
    if evidence.origin is None:
        return None
    if not any(dtype in _LOW for node in tracer.nodes for dtype in node.dtypes):
        return Cure(status="no-cure", why=("every operation of the step was in float32 or wider already",))
    sites = dict.fromkeys(node.place.site for node in tracer.nodes)
    return _Search(evidence, replayer, names, microbatches, seed_scale, list(sites)).run()


class _Search:
    """Adds the cell where the step fails next, until it does not, and leaves out what was not needed.

    Where that leads nowhere, all cells that the step ran are searched, children before parents.
    """

    def __init__(
        self,
        evidence: Evidence,
        replayer: Replayer,
        names: NameMap,
        microbatches: Sequence[GradCall],
        seed_scale: float,
        sites: Sequence[str],
    ) -> None:
        self._evidence, self._replayer, self._names = evidence, replayer, names
        self._microbatches, self._seed_scale = microbatches, seed_scale
        self._cells = dict(names.cells())
        self._sites = [site for site in sites if site in self._cells]
        self._known: dict[tuple[str, ...], tuple[bool, str | None]] = {}
        self._n_replays = 0
        self._started = time.perf_counter()

    def run(self) -> Cure:
        """The outcome."""
        try:
            followed, tried = self._followed()
            candidates = followed or self._all_sites()
            found = smallest(candidates, lambda targets: self._fails_at(targets)[0], guess=max(1, len(followed)))
        except OutOfBudget:
            return self._no_time()
        if found.targets is not None:
            return self._found(tuple(sorted(found.targets)), is_minimal=found.is_minimal)
        if self._is_late():
            return self._no_time()
        why = f"tried in float32: {'; '.join([*tried, *candidates]) or 'no cell of the model'}. The step is not finite"
        return Cure(status="no-cure", replays=self._n_replays, why=(why,))

    def _followed(self) -> tuple[tuple[str, ...], list[str]]:
        """Cells with which the step is finite, from the blamed operator's on, or none; and what was tried."""
        targets: tuple[str, ...] = ()
        site: str | None = self._evidence.origin.site if self._evidence.origin is not None else None
        tried: list[str] = []
        for _ in range(MAX_ROUNDS):
            wider = None if site is None else self._with(targets, site)
            if wider is None:
                break
            targets = wider
            tried.append(" and ".join(target or "the model" for target in targets))
            is_finite, site = self._fails_at(targets)
            if is_finite:
                return targets, tried
        return (), tried

    def _all_sites(self) -> Sequence[str]:
        """Cells of the step, children before parents; none where not even the whole model in float32 helps."""
        return () if ("",) in self._known else sorted(self._sites, key=lambda site: (not site, -site.count(".")))

    def _is_late(self) -> bool:
        return time.perf_counter() - self._started > PATIENCE_S

    def _no_time(self) -> Cure:
        return Cure(status="cannot-tell", replays=self._n_replays, why=("there was no time to try more cells",))

    def _with(self, targets: tuple[str, ...], site: str) -> tuple[str, ...] | None:
        """The targets and the cell at a site; where that is in one of them already, the cell around that one."""
        held = next((target for target in targets if _is_in(site, target)), None)
        wanted = next((path for path in _outwards(site) if path in self._cells), None)
        if held is not None:
            wanted = next((path for path in _outwards(held)[1:] if path in self._cells), None)
        if wanted is None:
            return None
        return tuple(sorted({wanted, *(target for target in targets if not _is_in(target, wanted))}))

    def _fails_at(self, targets: tuple[str, ...]) -> tuple[bool, str | None]:
        """Whether all is finite with these in float32; if not, the cell where it fails now."""
        targets = tuple(sorted(targets))
        if targets in self._known:
            return self._known[targets]
        if self._is_late():
            raise OutOfBudget
        answer = self._known[targets] = self._replayed(targets)
        return answer

    def _replayed(self, targets: tuple[str, ...]) -> tuple[bool, str | None]:
        for call in self._microbatches:
            self._n_replays += 1
            with contextlib.ExitStack() as stack:
                for target in targets:
                    stack.enter_context(island(self._cells[target]))
                try:
                    how = {"seed_scale": self._seed_scale, "eager": True}  # a compiled cell would not see the change
                    tracer, replayed = traced(self._replayer, self._names, call, **how)
                except Exception:  # the user's own code may not take float32 there
                    return False, None
            found = None if tracer.broken else blamed(tracer, call, replayed)
            if not replayed.finite:
                place = tracer.nodes[found.origin].place if found is not None and found.origin is not None else None
                return False, place.site if place is not None else None
        return True, None

    def _found(self, targets: tuple[str, ...], *, is_minimal: bool) -> Cure:
        scale = self._evidence.loss_scale
        return Cure(
            status="cured",
            targets=targets,
            verified=True,
            cast_back=False,
            minimal=is_minimal,
            replays=self._n_replays,
            seconds=time.perf_counter() - self._started,
            n_candidates=len(self._sites),
            n_params=len(self._microbatches[0].weights),
            n_microbatches=len(self._microbatches),
            scale=None if scale is None else scale * self._seed_scale,
            api=_api(targets),
        )


def remedies(evidence: Evidence) -> tuple[Remedy, ...]:
    """What to change, from what was tried; verified ones first."""
    found: list[Remedy] = []
    cure = evidence.cure
    if cure is not None and cure.verified:
        where = ", ".join(target or "the model" for target in cure.targets)
        text = f"run {where} in float32: {cure.api}"
        found.append(Remedy(action=cure.action, targets=cure.targets, verified=True, text=text))
    left_out = samples.remedy(evidence)
    return (*found, left_out) if left_out is not None else tuple(found)


def _api(targets: tuple[str, ...]) -> str:
    if targets == ("",):
        return "net.to_float(mindspore.float32)"
    if len(targets) == 1:
        return f'dict(net.cells_and_names())["{targets[0]}"].to_float(mindspore.float32)'
    return f"for name in {list(targets)}: dict(net.cells_and_names())[name].to_float(mindspore.float32)"


def _is_in(site: str, target: str) -> bool:
    return not target or site == target or site.startswith(f"{target}.")


def _outwards(site: str) -> list[str]:
    """The cell and those around it: a.b.c, a.b, a, "" (the model)."""
    parts = site.split(".") if site and site != "loss" else []
    return [".".join(parts[:n]) for n in range(len(parts), -1, -1)]
