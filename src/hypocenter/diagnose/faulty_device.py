"""What follows from a faulty device or a wrong kernel is told under it: the wrong values, and where they went.

Rules and evidence see a gradient far out, a sum of ranks that does not come out, NaN some steps later; the check that
did the micro-batch again (HC341 to HC343) knows why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypocenter.diagnose.group import Folded
from hypocenter.nouns import Finding

HARDWARE = ("HC341", "HC342", "HC343")
_KINDS = frozenset({"nonfinite", "exploding", "spike", "divergence", "comm", "desync", "hardware", "overflow-risk"})
_FOLLOWING = frozenset({
    "unknown", "exploding-activation", "exploding-gradient", "format-overflow", "accumulation-overflow",
    "inf-minus-inf", "zero-times-inf", "bad-parameter", "hardware-fault", "kernel-bug", "collective-fault",
    "replica-drift", "noise",
})  # fmt: skip
"""Causes that wrong bits bring about. One that names a line of the program, or the data, stands by itself."""
_LEFT = frozenset({"nonfinite", "exploding", "spike"})  # what one wrong update leaves in the parameters
LASTING = 16  # steps in which what comes after a single wrong update is laid to it
_SHOWN = 6  # consequences that are named


def with_device(folded: Sequence[Folded]) -> tuple[Folded, ...]:
    """The same findings; those that a faulty device or kernel explains are told in its `then`."""
    blamed = [f for f in folded if f.finding.code in HARDWARE]
    if not blamed:
        return tuple(folded)
    under: dict[int, list[Finding]] = {}
    kept: list[Folded] = []
    for each in folded:
        leader = None if each in blamed else _leader(each.finding, blamed)
        if leader is None:
            kept.append(each)
        else:
            under.setdefault(id(leader), []).append(each.finding)
    return tuple(_with(each, under.get(id(each), ())) for each in _first(kept, blamed))


def _leader(finding: Finding, blamed: Sequence[Folded]) -> Folded | None:
    if finding.kind not in _KINDS or finding.cause not in _FOLLOWING or finding.severity == "note":
        return None
    before = [b for b in blamed if b.finding.step <= finding.step]
    lasting = [b for b in before if _explains(b.finding, finding)]
    return max(lasting, key=lambda b: (b.finding.step, b.finding.rank == finding.rank), default=None)


def _explains(device: Finding, finding: Finding) -> bool:
    """At its own step a fault explains what is wrong; later what it left in the parameters, or does again."""
    if device.code != "HC341" or device.step == finding.step:
        return True
    return finding.kind in _LEFT and finding.step <= device.step + LASTING


def _first(kept: Sequence[Folded], blamed: Sequence[Folded]) -> list[Folded]:
    """Of one step, the device before the rest."""
    steps = {b.finding.step for b in blamed}
    return sorted(
        kept,
        key=lambda f: (
            f.finding.severity == "note", f.finding.step, f.finding.step in steps and f.finding.code not in HARDWARE
        ),
    )  # fmt: skip


def _with(device: Folded, findings: Sequence[Finding]) -> Folded:
    if not findings:
        return device
    said = [f"step {f.step}, rank {f.rank}: {f.title}" for f in findings[:_SHOWN]]
    more = [f"{len(findings) - _SHOWN} further findings"] if len(findings) > _SHOWN else []
    bundle = device.finding.bundle or next((f.bundle for f in findings if f.bundle), None)
    then = tuple(dict.fromkeys((*device.finding.then, *said, *more)))
    return replace(device, finding=replace(device.finding, then=then, bundle=bundle))
