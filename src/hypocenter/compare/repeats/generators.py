"""Draws from generators whose state is not the same in both runs, and who is to blame for it: nobody, or a seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from hypocenter.compare.repeats.pairing import Pairing
from hypocenter.opbits import Event

Blame = Literal["unseeded", "seed", "follows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One draw that differs, in one process of a run."""

    pairing: Pairing
    event: Event
    blame: Blame
    seed: Event | None = None  # the call that gave another seed


def draws_of(pairings: Sequence[Pairing]) -> list[Draw]:
    """Return all draws and seeds that differ by themselves, not because of another, in the order of time."""
    found = [draw for pairing in pairings for draw in _of_process(pairing)]
    mains = {d.pairing.a.rank for d in found if d.pairing.trains and _seeds_workers(d) and d.blame != "follows"}
    kept = [d for d in found if d.blame != "follows" and not (_is_seeded_by_main(d) and d.pairing.a.rank in mains)]
    return sorted(kept, key=lambda draw: draw.event.time_ns)


def is_draw(event: Event) -> bool:
    """Return whether the event took numbers from a generator, or gave one its seed."""
    return event.kind in ("draw", "seed") or (event.kind == "op" and bool(event.generator))


def _of_process(pairing: Pairing) -> Iterator[Draw]:
    agreed: set[str] = set()  # generators that were once in the same state
    seeds: dict[str, Event] = {}  # the last one given to each
    for event in pairing.a.events:
        if not is_draw(event) or event.n not in pairing.partner:
            continue
        name = family(event.generator)
        differs = event.n in pairing.differs and pairing.differs[event.n].state
        if event.kind == "seed":
            seeds[name] = event
            if not differs:
                agreed.add(name)
            elif event.generator == "numpy.random.Generator":
                yield Draw(pairing=pairing, event=event, blame="unseeded" if not event.note else "seed", seed=event)
            else:
                agreed.discard(name)
            continue
        if not differs:
            agreed.add(name)
            continue
        seed = seeds.get(name)
        blame = _blame(pairing, event, name in agreed, seed)
        by = seed if blame == "seed" and seed is not None and seed.n in pairing.differs else None
        yield Draw(pairing=pairing, event=event, blame=blame, seed=by)


def _blame(pairing: Pairing, event: Event, once_agreed: bool, seed: Event | None) -> Blame:
    other = pairing.partner[event.n]
    if event.generator == "torch.Generator":
        return "seed" if event.note != other.note else "follows"
    if seed is not None and seed.n in pairing.differs:
        return "seed"
    if event.note != other.note:  # torch tells the seed that its generator started from
        return "unseeded"  # one that was given was taken back, as `fork_rng` does
    return "follows" if once_agreed else "unseeded"


def family(generator: str) -> str:
    """Return the name of all generators that are seeded together: `torch.manual_seed` seeds all of torch's."""
    return "torch" if generator.startswith("torch ") else generator


def _seeds_workers(draw: Draw) -> bool:
    """Return whether a draw of the main process decides a loader's workers' seeds, or what they inherit."""
    return family(draw.event.generator) == "torch"


def _is_seeded_by_main(draw: Draw) -> bool:
    """Return whether the draw is of a worker whose generator's state came from the loader."""
    if draw.pairing.trains or draw.seed is None:
        return False
    return draw.pairing.a.place_of(draw.seed).via == "loader"
