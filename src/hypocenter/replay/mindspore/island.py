"""Which cell in float32 makes the failed step finite: cells around the blamed operator are tried in replays."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Sequence
from typing import Any

from mindspore._c_expression import MixedPrecisionType  # pyright: ignore[reportMissingImports]

from hypocenter.diagnose.evidence import Cure, Evidence
from hypocenter.nouns import Remedy
from hypocenter.replay import samples
from hypocenter.replay.mindspore.engine import Replayer
from hypocenter.replay.mindspore.trace import OpTracer
from hypocenter.tap.mindspore.names import NameMap
from hypocenter.tap.mindspore.tape import GradCall

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
    """The innermost cell around the blamed operator whose float32 makes every micro-batch of the step finite.

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
    started, n_replays = time.perf_counter(), 0
    cells = dict(names.cells())
    candidates = [site for site in _outwards(evidence.origin.site) if site in cells]
    for site in candidates:
        if time.perf_counter() - started > PATIENCE_S:
            return Cure(status="cannot-tell", replays=n_replays, why=("there was no time to try more cells",))
        is_finite = True
        for call in microbatches:
            n_replays += 1
            with contextlib.suppress(Exception):  # the user's code may not take float32 there
                if replayer.run(call, around=island(cells[site]), seed_scale=seed_scale).finite:
                    continue
            is_finite = False
            break
        if is_finite:
            return Cure(
                status="cured",
                targets=(site,),
                verified=True,
                cast_back=False,
                replays=n_replays,
                seconds=time.perf_counter() - started,
                n_candidates=len(candidates),
                n_params=len(microbatches[0].weights),
                n_microbatches=len(microbatches),
                scale=None if evidence.loss_scale is None else evidence.loss_scale * seed_scale,
                api=_api(site),
            )
    tried = ", ".join(site or "the model" for site in candidates) or "no cell of the model"
    return Cure(status="no-cure", replays=n_replays, why=(f"tried in float32: {tried}; the step is not finite",))


def remedies(evidence: Evidence) -> tuple[Remedy, ...]:
    """What to change, from what was tried; verified ones first."""
    found: list[Remedy] = []
    cure = evidence.cure
    if cure is not None and cure.verified:
        site = cure.targets[0]
        text = f"run {site or 'the model'} in float32: {cure.api}"
        found.append(Remedy(action=cure.action, targets=cure.targets, verified=True, text=text))
    left_out = samples.remedy(evidence)
    return (*found, left_out) if left_out is not None else tuple(found)


def _api(site: str) -> str:
    cell = f'dict(net.cells_and_names())["{site}"]' if site else "net"
    return f"{cell}.to_float(mindspore.float32)"


def _outwards(site: str) -> list[str]:
    """The cell and those around it: a.b.c, a.b, a, "" (the model)."""
    parts = site.split(".") if site and site != "loss" else []
    return [".".join(parts[:n]) for n in range(len(parts), -1, -1)]
