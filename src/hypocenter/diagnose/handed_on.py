"""Along a pipeline a bad value is handed on: a stage that received it has done nothing wrong.

Forward hands activations to later stages, backward gradients to earlier ones. A replay on one stage sees a bad input,
or a bad gradient that comes from nowhere, and can only say so; the stage that made it has evidence of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypocenter.diagnose.evidence import Evidence
from hypocenter.diagnose.exhibits import Exhibit, Exhibits, exhibited
from hypocenter.nouns import Place


def without_received(exhibits: Exhibits, places: Mapping[int, Place]) -> Exhibits:
    """The same exhibits; those that show what another stage of their pipeline made say no more than that."""
    if not any(len(place.groups.get("pp", ())) > 1 for place in places.values()):
        return exhibits
    found = [_told(exhibit, maker) if (maker := _maker(exhibit, exhibits, places)) is not None else exhibit
             for exhibit in exhibits.found]  # fmt: skip
    found.sort(key=lambda e: (e.finding.step, not e.is_located, e.finding.rank))
    return replace(exhibits, found=tuple(found))


def _maker(exhibit: Exhibit, exhibits: Exhibits, places: Mapping[int, Place]) -> int | None:
    """The rank of the stage, upstream of what the exhibit shows, that the bad value came from."""
    rank, step = exhibit.finding.rank, exhibit.finding.step
    stages = places[rank].groups.get("pp", ()) if rank in places else ()
    if rank not in stages or not (from_before(exhibit.evidence) or from_behind(exhibit.evidence)):
        return None
    here = stages.index(rank)
    upstream = stages[:here] if from_before(exhibit.evidence) else stages[here + 1 :]
    if is_received(exhibit.evidence):  # of ranks that hold several stages each may be upstream of the other
        upstream = [each for each in stages if each != rank]
    others = (e for e in exhibits.found if e.finding.step <= step and e.finding.rank in upstream and e.is_located)
    return next((e.finding.rank for e in others if not from_before(e.evidence) and not from_behind(e.evidence)), None)


def from_before(evidence: Evidence) -> bool:
    """A stage's input was bad: an argument of its call, or a tensor that Megatron-Core has put into the stage."""
    is_forward = evidence.origin is None or evidence.origin.phase == "forward"
    return evidence.leaf is not None and evidence.leaf_kind in ("batch", "external") and is_forward


def from_behind(evidence: Evidence) -> bool:
    """A gradient came into backward that no operation here made; not by a hook on a parameter's own gradient."""
    origin = evidence.origin
    if origin is None or evidence.leaf is None or evidence.leaf_kind != "external":
        return False
    return origin.phase == "backward" and "AccumulateGrad" not in origin.node


def is_received(evidence: Evidence) -> bool:
    """The value came from another stage for certain: from before or from behind."""
    return (evidence.is_handed_in and from_before(evidence)) or from_behind(evidence)


def _told(exhibit: Exhibit, maker: int) -> Exhibit:
    why_not = f"the value came from rank {maker}, another stage of the pipeline"
    evidence = replace(exhibit.evidence, origin=None, leaf=None, path=(), killed=(), why_not=why_not, nan_maker=None)
    return exhibited(evidence, rank=exhibit.finding.rank, bundle=exhibit.finding.bundle)
