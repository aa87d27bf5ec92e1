"""A root or a draw in words: what did not repeat, why that is known, and what to do about it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from hypocenter.compare.repeats.answer import Origin
from hypocenter.compare.repeats.generators import Draw
from hypocenter.compare.repeats.pairing import Pairing
from hypocenter.nouns import Source
from hypocenter.opbits import OUTSIDE, Event, Place

ADDING = (
    "index_add", "scatter_add", "index_put", "_index_put_impl", "_unsafe_index_put", "put", "scatter_reduce",
    "index_reduce", "bincount", "histc", "embedding_dense_backward", "embedding_bag", "_embedding_bag", "grid_sampler",
    "upsample", "max_pool", "adaptive_avg_pool", "reflection_pad", "replication_pad", "cumsum", "convolution_backward",
    "_scaled_dot_product", "_flash_attention_backward", "_efficient_attention_backward", "segment_reduce",
)  # fmt: skip
"""Operators that add into shared places: atomically on a GPU, by several threads on a CPU (torch's own list of what
`use_deterministic_algorithms` changes or warns of)."""

PYTHONS = ("outside", "choice", "parted")
"""Roots behind which there is something that went through Python: a draw, perhaps."""

_GENERATORS = {"random": "Python's generator", "numpy.random": "NumPy's global generator"}
_LOOK = "look for what decides here: order of a set (PYTHONHASHSEED) or of files, time, an environment variable"
_SEEDING = {
    "random": "random.seed(SEED)", "numpy.random": "numpy.random.seed(SEED)",
    "numpy.random.Generator": "numpy.random.default_rng(SEED)", "torch.Generator": "generator.manual_seed(SEED)",
}  # fmt: skip


def of_draw(draw: Draw, why: Iterable[str] = ()) -> Origin:
    """Describe a draw from a generator whose state differs."""
    event, pairing = draw.event, draw.pairing
    generator, seed = generator_words(event.generator), draw.seed
    if draw.blame == "unseeded":
        made = event.kind == "seed"
        what = f"makes {generator} without a seed" if made else f"draws from {generator}, which has no seed"
        reasons = [f"{generator} is made from the operating system's entropy" if made else _never(event, pairing)]
        fix = (
            f"{_seeding(event)} {'here' if made else 'at the start of the program'}, or hypocenter run --deterministic"
        )
        return _origin(event, pairing, "unseeded-generator", what, reasons=[*reasons, *why], fix=fix)
    what = f"draws from {generator}, which gets another seed in each run"
    reasons = [_seeds(pairing, seed) if seed is not None else _initial(event, pairing.partner[event.n])]
    fix = "seed it with a number that stays the same from run to run"
    return _origin(event, pairing, "seed-differs", what, reasons=[*reasons, *why], fix=fix)


def of_seed(draw: Draw, why: Iterable[str] = ()) -> Origin:
    """Describe the call that gave the generator another seed; where there was none, the draw."""
    seed, event, pairing = draw.seed, draw.event, draw.pairing
    if seed is None or seed is event:
        return of_draw(draw, why)
    other, generator = pairing.partner[seed.n], generator_words(seed.generator)
    drew = f"{place_words(event, pairing.a.place_of(event))} draws from it"
    if not seed.note:
        what = f"seeds {generator} from the operating system's entropy"
        fix = f"{_seeding(seed)} here, or hypocenter run --deterministic"
        return _origin(seed, pairing, "unseeded-generator", what, reasons=[drew, *why], fix=fix)
    what = f"gives {generator} another seed in each run"
    reasons = [f"{_cut(seed.note)} in one run, {_cut(other.note)} in the other", drew, *why]
    fix = "give it a number that stays the same from run to run"
    return _origin(seed, pairing, "seed-differs", what, reasons=reasons, fix=fix)


def of_root(root: Root, pairing: Pairing, draw: Draw | None) -> Origin:
    """Describe a root.

    Args:
        draw: of the same event; for what came from outside or took another path, the first draw before it that may be
            the reason.
    """
    event = root.event
    if root.kind == "drew" and draw is not None:
        return of_seed(draw)
    if root.kind in PYTHONS and draw is not None:
        return replace(of_seed(draw, (_consequence(root, pairing),)), confidence="likely")
    if root.kind == "op":
        return _of_operator(event, pairing)
    if root.kind == "outside":
        return _of_outside(event, pairing)
    if root.kind == "parted":
        return _of_parting(root, pairing)
    if root.kind == "choice":
        return _of_choice(root, pairing)
    if root.kind == "undefined":
        return _of_undefined(root, pairing)
    if root.kind == "changed":
        return _of_changed(root, pairing)
    what = "draws other numbers"
    reasons = [
        "its generator was in the same state in both runs before, so something between drew from it or seeded it"
    ]
    return _origin(event, pairing, "unknown", what, reasons=reasons, confidence="possible")


def counted(origins: Iterable[Origin]) -> list[Origin]:
    """Join the origins of one line, of whatever rank, to one with their count, in order."""
    found: dict[Any, Origin] = {}
    for origin in origins:
        source = origin.source
        key = (origin.cause, origin.op, origin.generator, origin.worker is None,
               source.file if source else origin.site, source.line if source else 0)  # fmt: skip
        first = found.get(key)
        found[key] = origin if first is None else replace(first, n=first.n + origin.n)
    return list(found.values())


def generator_words(name: str) -> str:
    """Return the name of a generator in words: `torch's generator (cpu)`."""
    if name.startswith("torch "):
        return f"torch's generator ({name.removeprefix('torch ')})"
    return _GENERATORS.get(name, f"a {name}")


def place_words(event: Event, place: Place) -> str:
    """Return an event and its place in words: `aten.embedding.default at model.py:12, step 0`."""
    where = f" at {_short(place)}" if place.file else f" in {place.site}" if place.site else ""
    return f"{event.name}{where}, {moment(event.phase, event.step)}"


def moment(phase: str, step: int) -> str:
    """Return a time in words: `before the first step`, or `step 3, backward`."""
    return "before the first step" if phase == "setup" else f"step {step}, {phase}"


def _origin(
    event: Event, pairing: Pairing, cause: Any, what: str, *, reasons: Sequence[str], fix: str = "",
    confidence: Any = "proven",
) -> Origin:  # fmt: skip
    trace = pairing.a
    place = trace.place_of(event)
    source = Source(file=place.file, line=place.line, text=place.text, function=place.function) if place.file else None
    via = {"loader": ["torch.utils.data does it on behalf of this line"]}.get(
        place.via, [f"in the {place.via}"] if place.via.startswith("backward") else []
    )
    param = trace.parameters.get(event.n, "") if event.phase == "setup" else ""
    return Origin(
        cause=cause, confidence=confidence, what=what, op=event.name, phase=event.phase, step=event.step,
        microbatch=event.microbatch, rank=trace.rank, worker=trace.worker, site=place.site, module=place.module,
        param=param, generator=event.generator, source=source,
        why=(*reasons, *via), fix=fix,
    )  # fmt: skip


def _of_operator(event: Event, pairing: Pairing) -> Origin:
    base = event.name.split(".")[1] if event.name.count(".") else event.name
    n = len(event.reads)
    inputs = "its input agrees" if n == 1 else f"its {n} inputs agree" if n else "it has no inputs"
    reasons = [
        f"{inputs} bit for bit in both runs, its output ({event.writes[0].form if event.writes else ''}) does not"
    ]
    if base.strip("_").startswith(tuple(name.strip("_") for name in ADDING)):
        what = "gives other bits for the same inputs"
        reasons.append("it adds up what goes to the same place, in no fixed order (atomic additions, threads)")
        fix = "hypocenter run --deterministic takes an ordered form of it, if torch has one for this device"
        return _origin(event, pairing, "unordered-accumulation", what, reasons=reasons, fix=fix)
    what = "gives other bits for the same inputs"
    fix = "hypocenter run --deterministic takes a deterministic form of it, if torch has one for this device"
    return _origin(event, pairing, "kernel-not-repeatable", what, reasons=reasons, fix=fix)


def _of_outside(event: Event, pairing: Pairing) -> Origin:
    what = "reads data that differ between the runs"
    reasons = [
        "no operator of torch made them: a file, NumPy, a loader's worker or compiled code did",
        "no draw that was seen before it differs",
    ]
    fix = "look at what makes the data: order of files and sets, time, generators that the program made itself"
    return _origin(event, pairing, "other-data", what, reasons=reasons, fix=fix, confidence="likely")


def _of_parting(root: Root, pairing: Pairing) -> Origin:
    other = root.other
    instead = f"{place_words(other, pairing.b.place_of(other))}" if other is not None else "nothing more"
    reasons = [f"up to here both runs did the same {root.event.n:,} things; here the other one did {instead}"]
    what = "is where the program does other things"
    return _origin(root.event, pairing, "other-path", what, reasons=reasons, fix=_LOOK)


def _of_choice(root: Root, pairing: Pairing) -> Origin:
    event, other = root.event, root.other
    reasons = ["all that operators computed before agrees, so the program itself chose differently, in Python"]
    if other is not None and event.arguments != other.arguments:
        reasons.insert(
            0, f"its arguments are {_cut(event.arguments, 60)} in one run, {_cut(other.arguments, 60)} in the other"
        )
        what = "is called with other numbers"
    else:
        reasons.insert(0, "it reads another tensor, or another part of one")
        what = "reads other tensors"
    return _origin(event, pairing, "other-path", what, reasons=reasons, fix=_LOOK)


def _of_undefined(root: Root, pairing: Pairing) -> Origin:
    reasons = ["what was written there agrees, so the bits that differ are of a part that nobody wrote"]
    if root.maker is not None:
        reasons.append(f"it was written last by {place_words(root.maker, pairing.a.place_of(root.maker))}")
    what = "reads memory that nobody has written"
    fix = "torch.zeros in place of torch.empty, or write all of it"
    return _origin(root.event, pairing, "undefined-memory", what, reasons=reasons, fix=fix)


def _of_changed(root: Root, pairing: Pairing) -> Origin:
    reasons = []
    if root.maker is not None:
        reasons = [f"it agreed when {place_words(root.maker, pairing.a.place_of(root.maker))} wrote it, and not here"]
    what = "reads memory that was changed by something that is no operator of torch"
    fix = "look for a kernel of your own, NumPy on shared memory, another thread, or compiled code"
    return _origin(root.event, pairing, "changed-outside", what, reasons=reasons, fix=fix)


def _consequence(root: Root, pairing: Pairing) -> str:
    where = place_words(root.event, pairing.a.place_of(root.event))
    if root.kind != "outside":
        return f"so the program does other things from {where} on"
    return f"so the data differ that reach {where}"


def _never(event: Event, pairing: Pairing) -> str:
    other = pairing.partner[event.n]
    if event.kind == "op" and event.note != other.note:
        return f"{_initial(event, other)}, and no seed that was given reaches it"
    if not pairing.a.place_of(event).file:
        return "its state differs; the draw was not seen by line, for its function was taken before torch was imported"
    return "its state differed already at its first draw, and nothing in the program seeds it"


def _initial(event: Event, other: Event) -> str:
    return f"it started from {_cut(event.note)} in one run and {_cut(other.note)} in the other"


def _seeds(pairing: Pairing, seed: Event) -> str:
    other, place = pairing.partner[seed.n], pairing.a.place_of(seed)
    given = f"{_cut(seed.note)} and {_cut(other.note)}" if seed.note else "nothing, so the operating system's entropy"
    by = "torch.utils.data" if place.via == "loader" else _short(place)
    return f"{seed.name} at {by} gave it {given}"


def _seeding(event: Event) -> str:
    return _SEEDING.get(event.generator, "torch.manual_seed(SEED)")


def _short(place: Place) -> str:
    return f"{place.file.replace(chr(92), '/').rpartition('/')[2]}:{place.line}"


def _cut(text: str, at_most: int = 24) -> str:
    return text if len(text) <= at_most else f"{text[: at_most - 3]}..."


RootKind = Literal["drew", "op", "outside", "choice", "changed", "undefined", "parted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """An event of the first run, and in what way it is the first of its kind.

    drew: it took random numbers from a generator in another state; op: its inputs agree, its outputs do not; outside:
    it read what no operator wrote; choice: Python gave it other numbers, other tensors or another part of one; changed:
    it read what had agreed when it was written; undefined: it read memory that nobody had written; parted: the other
    run did something else here.
    """

    event: Event
    kind: RootKind
    other: Event | None = None  # of the second run; None when it had ended
    maker: Event | None = None  # of the memory that was changed, or never written


def roots_of(pairing: Pairing) -> list[Root]:
    """Return all roots that reach a result that differs, each event once, in the order of the first run."""
    starts = [one.n for one, _ in pairing.results if one.n in pairing.differs]
    if not starts:
        return []
    found: dict[int, Root] = {}
    seen = set(starts)
    ends = [one.n for one, _ in pairing.parted if one is not None]
    waiting = starts + (_steering(pairing, max(ends)) if ends else [])
    while waiting:
        n = waiting.pop()
        for step in _look(pairing, n):
            if isinstance(step, Root):
                found.setdefault(step.event.n, step)
            elif step not in seen:
                seen.add(step)
                waiting.append(step)
    return sorted(found.values(), key=lambda root: root.event.n)


def _look(pairing: Pairing, n: int) -> Iterator[Root | int]:
    """Yield the roots at this event, and the numbers of earlier events that explain it."""
    event = pairing.by_n.get(n)
    if event is None:
        return
    other = pairing.partner.get(n)
    if other is None:  # the other run did something else: whatever it read may be the reason
        yield from _parted(pairing, event)
        return
    differs = pairing.differs.get(n)
    if differs is None:
        return
    if differs.choice:
        behind = _steering(pairing, n) + [read.writer for read in event.reads if read.writer in pairing.differs]
        yield from behind or [Root(event=event, kind="choice", other=other)]
        return
    if differs.state and event.kind == "op":
        yield Root(event=event, kind="drew", other=other)
    if event.kind == "op" and not differs.state and not any(differs.reads):
        yield Root(event=event, kind="op", other=other)
    for read, is_other in zip(event.reads, differs.reads, strict=True):
        if is_other:
            yield from _behind(pairing, event, other, read.writer, is_undefined=read.is_undefined)


def _behind(pairing: Pairing, event: Event, other: Event, writer: int, *, is_undefined: bool) -> Iterator[Root | int]:
    made = pairing.by_n.get(writer)
    if writer == OUTSIDE or made is None:
        yield Root(event=event, kind="outside", other=other)
    elif writer not in pairing.partner or (writer in pairing.differs and pairing.differs[writer].at_all):
        yield writer
    elif made.name.startswith(("c10d", "_c10d")):  # what other ranks sent: they are compared too
        return
    else:
        yield Root(event=event, kind="undefined" if is_undefined else "changed", other=other, maker=made)


def _parted(pairing: Pairing, event: Event) -> Iterator[Root | int]:
    for one, other in pairing.parted:
        if one is not None and one.thread == event.thread:
            yield Root(event=one, kind="parted", other=other)
    yield from (read.writer for read in event.reads if read.writer in pairing.differs)


def _steering(pairing: Pairing, end: int) -> list[int]:
    """Return the events before this one that differ and whose values went to Python: `if loss.item() > ...`."""
    return pairing.steering[: bisect_left(pairing.steering, end)]
