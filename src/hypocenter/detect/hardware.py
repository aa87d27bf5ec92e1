"""Hardware or software, from the rows at site `sdc`: what each rank's check came to, and what all of them say together.

A micro-batch done again on the same device gives the same bits on healthy hardware. So other bits than the run's accuse
the device that ran; the same wrong bits again accuse the device if a neighbour's are right, the kernel if they are
wrong there too; and right results everywhere leave the data and the mathematics. Each step away from that is a reason
to say nothing: programs with state of their own, devices that add in any order, neighbours that are not alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from hypocenter import repetition
from hypocenter.detect.checked import NOISE, Checked, WrongOp, checks_in
from hypocenter.detect.panel import Panel
from hypocenter.nouns import Confidence, Finding, Phase, Place, Source

Kind = Literal["transient", "persistent", "kernel"]
MOVED = 2  # elements: one wrong place is another one when the rows are moved


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """A verdict against hardware or a kernel."""

    kind: Kind
    check: Checked
    confidence: Confidence
    why: tuple[str, ...]
    wrong: WrongOp | None = None
    ranks: tuple[int, ...] = ()  # of which one is meant, when it cannot be told which


def rulings(
    checks: Sequence[Checked], faithful: Callable[[int], int], floor: Callable[[int], float] = lambda _: 0.0
) -> Iterator[Ruling]:
    """Yield the verdicts that the checks of one step give together.

    Args:
        faithful: how many other steps of this rank, done again, came to the same bits as the run.
        floor: how far apart replays of one step of this rank were, at any step.
    """
    yield from _wrong_everywhere_or_here(checks)
    yield from _transient(checks, faithful, floor)
    yield from _at_odds(checks)


def _wrong_everywhere_or_here(checks: Sequence[Checked]) -> Iterator[Ruling]:
    """Rule on ops that float64 contradicts: on all ranks, or on one."""
    judged = [c for c in checks if c.n_ops]
    wrong = [c for c in judged if c.n_wrong]
    if not wrong:
        return
    ranks, bad = {c.rank for c in judged}, {c.rank for c in wrong}
    shared = {c.rank: {w.op for w in c.wrong} for c in wrong}
    common = set.intersection(*shared.values())
    if bad == ranks and len(ranks) > 1 and common:
        first = wrong[0]
        op = next(w for w in first.wrong if w.op in common)
        same = any(c.neighbour_agrees for c in wrong)
        why = f"{op.op} does not agree with float64 on any of {len(ranks)} ranks"
        yield Ruling(
            kind="kernel", check=first, confidence="proven" if same or len(ranks) > 2 else "likely", wrong=op,
            why=(why, *(("a neighbour's device gives the same wrong bits",) if same else ())),
        )  # fmt: skip
        return
    for check in _one_each(wrong):
        yield from _wrong_here(check, clean=sorted(ranks - bad))


def _wrong_here(check: Checked, clean: Sequence[int]) -> Iterator[Ruling]:
    op = check.wrong[0] if check.wrong else None
    if check.theirs is not None and check.neighbour_agrees:
        why = (f"rank {check.neighbour} gives the same wrong bits for this micro-batch",)
        yield Ruling(kind="kernel", check=check, confidence="proven", why=why, wrong=op)
    elif check.theirs is not None and check.theirs_ops and not check.theirs_wrong:
        why = (f"on rank {check.neighbour} every op of this micro-batch agrees with float64",)
        yield Ruling(kind="persistent", check=check, confidence="proven", why=why, wrong=op)
    elif clean:
        who = f"{len(clean)} other rank{'s' if len(clean) > 1 else ''}"
        why = (f"every op agrees with float64 on {who} at the same step",)
        yield Ruling(kind="persistent", check=check, confidence="likely", why=why, wrong=op)
    else:
        why = ("one rank alone cannot tell whether it is this device or its kernel",)
        yield Ruling(kind="kernel", check=check, confidence="possible", why=why, wrong=op)


def _transient(
    checks: Sequence[Checked], faithful: Callable[[int], int], floor: Callable[[int], float]
) -> Iterator[Ruling]:
    """Rule on runs that came to something their device does not come to again."""
    compared = {c.rank for c in checks if c.n_compared or c.differ}
    off = _one_each([c for c in checks if c.run_differs and not c.n_wrong and c.largest > NOISE * floor(c.rank)])
    if not off or (len(off) > 1 and 2 * len(off) >= len(compared)):
        return  # many ranks at once: what they share is the program
    for check in off:
        if check.state or not check.n_ops:
            continue
        partly = check.n_equal > 0
        if not (partly or faithful(check.rank)):
            continue
        how = "came out differently" if check.is_noisy else "came to other bits, each time the same"
        why = [f"done again {check.n_replays} times, {_listed(check.differ)} {how}"]
        if check.neighbour_agrees:
            why.append(f"rank {check.neighbour} agrees with the second time, not with the run")
        why.append(f"{check.n_ops:,} ops of the replay agree with float64")
        why.append(
            f"{check.n_equal:,} of {check.n_compared:,} gradients are equal in every bit"
            if partly
            else "other steps, done again, came to the bits of the run"
        )
        is_sure = check.n_replays + faithful(check.rank) >= repetition.MANY
        is_sure = is_sure and (check.neighbour_agrees or (partly and not check.is_noisy))
        yield Ruling(
            kind="transient", check=check, why=tuple(why),
            confidence="likely" if is_sure else "possible",
        )  # fmt: skip


def _at_odds(checks: Sequence[Checked]) -> Iterator[Ruling]:
    """Rule on devices that come to other bits for the same, though no op is wrong beyond rounding: which is it?"""
    told = [c for c in checks if c.neighbour >= 0 and c.theirs is not None]
    odd = [c for c in told if c.neighbour_differs and not c.n_wrong and not c.theirs_wrong and not c.run_differs]
    if not odd or any(c.state for c in odd):
        return
    agreeing = {rank for c in told if c.neighbour_agrees for rank in (c.rank, c.neighbour)}
    suspects = {rank for c in odd for rank in (c.rank, c.neighbour)} - agreeing
    if len(suspects) == 1 and all(suspects & {c.rank, c.neighbour} for c in odd):
        rank = suspects.pop()
        check = next(c for c in odd if rank in (c.rank, c.neighbour))
        pair = sorted({r for c in odd for r in (c.rank, c.neighbour)} - {rank})
        why = (
            f"rank {rank} comes to other bits than {_ranks(pair)} for the same micro-batches",
            "the others agree with each other in every bit",
        )
        yield Ruling(kind="persistent", check=replace(check, rank=rank), confidence="proven", why=why)
        return
    votes = {rank: n for c in odd for rank, n in _vote(c).items()}
    if len(suspects) == 2 and len(votes) == 1:
        rank, n = next(iter(votes.items()))
        check = next(c for c in odd if rank in (c.rank, c.neighbour))
        (other,) = suspects - {rank}
        why = (
            f"rank {rank} and rank {other} come to other bits for the same micro-batch",
            f"on rank {rank} {n:g} more elements of products change when rows are moved by one than on rank {other}",
        )
        yield Ruling(kind="persistent", check=replace(check, rank=rank), confidence="likely", why=why)


def _vote(check: Checked) -> dict[int, float]:
    """Return which of two ranks has products that depend more on where a row stands, and by how many elements."""
    here, there = check.moved
    if check.neighbour < 0 or abs(here - there) < MOVED:
        return {}
    return {check.rank: here - there} if here > there else {check.neighbour: there - here}


def _one_each(checks: Sequence[Checked]) -> list[Checked]:
    return list({c.rank: c for c in reversed(checks)}.values())[::-1]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and others"


def _ranks(ranks: Sequence[Any]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def found_in(panel: Panel, code: str, kind: Kind) -> Iterator[Finding]:
    """Yield findings of one kind at this step, and at earlier steps that can be judged only now."""
    notes = panel.history.notes[code]
    checks = checks_in(panel)
    if checks:
        faithful: Counter[int] = notes.setdefault("faithful", Counter())
        faithful.update(c.rank for c in checks if c.run_agrees and not c.n_wrong)
        floor: dict[int, float] = notes.setdefault("floor", {})
        for check in checks:
            floor[check.rank] = max(floor.get(check.rank, 0.0), check.noise)
        notes.setdefault("steps", {})[panel.step] = checks
    told: set[tuple[int, str]] = notes.setdefault("told", set())
    for step, group in list(notes.get("steps", {}).items()):
        for ruling in rulings(group, lambda rank: notes["faithful"][rank], lambda rank: notes["floor"].get(rank, 0.0)):
            who = ruling.wrong.op if ruling.kind == "kernel" and ruling.wrong is not None else str(ruling.check.rank)
            key = (step if kind == "transient" else -1, who)  # what goes on and on is told once
            if ruling.kind == kind and key not in told:
                told.add(key)
                yield finding(ruling, code, panel.places.get(ruling.check.rank))
        if step < panel.step and checks:
            del notes["steps"][step]  # a later check has been seen: nothing more is to come


def finding(ruling: Ruling, code: str, place: Place | None) -> Finding:
    """Turn a verdict into a finding."""
    check, op = ruling.check, ruling.wrong
    what = {
        "transient": "computed something once that it does not compute again",
        "persistent": "computes wrong results, again and again",
        "kernel": "does not compute what it should",
    }[ruling.kind]
    who = op.op if op is not None and ruling.kind == "kernel" else f"rank {check.rank}{_device(place)}"
    site, source, phase = _where(ruling)
    params = [name for name in (check.differ or check.theirs_differ) if not name.startswith("loss")]
    param = params[0] if len(params) == 1 and op is None else None
    return Finding(
        code=code, kind="hardware", severity="error", title=f"{who} {what}", step=check.step,
        microbatch=check.microbatch, rank=check.rank, phase=phase, site=site or param, param=param,
        port="grad" if param else None, op=op.op if op is not None else _parted(ruling), source=source,
        cause="kernel-bug" if ruling.kind == "kernel" else "hardware-fault", confidence=ruling.confidence,
        limit=op.float64 if op is not None else None, actual=op.got if op is not None else None,
        why=(*ruling.why, *_of_op(op)),
    )  # fmt: skip


def _where(ruling: Ruling) -> tuple[str | None, Source | None, Phase]:
    op, parting = ruling.wrong, ruling.check.parting
    if op is not None:
        return op.site or None, op.source, op.phase if op.phase in ("forward", "loss", "backward") else "grad"  # type: ignore[return-value]
    if parting is not None and ruling.kind == "persistent":
        return (parting.names or ("",))[0] or None, parting.source, "grad"
    return None, None, "grad"


def _parted(ruling: Ruling) -> str | None:
    parting = ruling.check.parting
    return parting.op if parting is not None and ruling.kind == "persistent" else None


def _of_op(op: WrongOp | None) -> tuple[str, ...]:
    if op is None or op.got is None or op.float64 is None:
        return ()
    count = f"{op.n_wrong} element{'' if op.n_wrong == '1' else 's'} of {op.op}, first {op.index}"
    bound = f", off by more than the {op.bound:.2g} that rounding allows" if op.bound is not None else ""
    return (f"{count}: {op.got:.6g}, and {op.float64:.6g} in float64{bound}",)


def _device(place: Place | None) -> str:
    if place is None or not (place.device or place.serial):
        return ""
    return f" ({' '.join(filter(None, (place.host, place.device, place.device_name, place.serial)))})"
