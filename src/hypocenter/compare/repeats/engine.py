"""Compare recordings of one program and say whether it repeats itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hypocenter.compare.repeats.answer import Determinism, Origin, Results
from hypocenter.compare.repeats.generators import Draw, draws_of
from hypocenter.compare.repeats.origins import PYTHONS, Root, counted, moment, of_draw, of_root, place_words, roots_of
from hypocenter.compare.repeats.pairing import Pairing, of_runs
from hypocenter.opbits import Trace
from hypocenter.record.bits_file import read_traces

ECHOES = ("other-data", "other-path", "changed-outside", "unknown")
Timed = tuple[int, Origin]  # when it happened in the first run, in ns


def compare_repeats(runs: Sequence[Path]) -> Determinism:
    """Compare the first run with each other one.

    Args:
        runs: two or more recordings made with `run --op-bits` by the same command.
    """
    traces = [list(read_traces(run)) for run in runs]
    first = traces[0]
    compared = [_compared(list(of_runs(first, other))) for other in traces[1:]]
    names = tuple(str(run) for run in runs)
    problem = _problem(traces, compared)
    if problem:
        return Determinism(runs=names, sentence=f"cannot tell: {problem}", why=(problem,))
    n_steps = len({event.step for trace in first for event in trace.events if event.kind == "result"})
    facts = Determinism(
        runs=names, n_steps=n_steps, n_ranks=len({trace.rank for trace in first}),
        n_events=sum(len(pairing.partner) for pairing in compared[0].pairings),
        results=max((each.results for each in compared), key=lambda results: results.n_differ),
        notes=tuple(_notes(traces, compared)),
    )  # fmt: skip
    apart = [each for each in compared if each.results.n_differ]
    if not apart:
        return replace(facts, status="deterministic", sentence=_agree(facts))
    timed = _without_echoes(sorted((item for each in apart for item in each.origins()), key=lambda item: item[0]))
    draws = counted(of_draw(draw) for each in apart[:1] for draw in each.draws)
    origins = counted(origin for _, origin in timed)
    first_origin = origins[0] if origins else None
    listed = {(d.op, d.source) for d in draws}
    also = [origin for origin in origins[1:] if (origin.op, origin.source) not in listed]
    found = replace(facts, status="differs", first=first_origin, also=tuple(also), draws=tuple(draws))
    return replace(found, sentence=_differ(found))


def _without_echoes(timed: list[Timed]) -> list[Timed]:
    """Drop, after the first, what came through Python, other ranks or compiled code: most likely echoes of it."""
    return [item for n, item in enumerate(timed) if n == 0 or item[1].cause not in ECHOES]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """The first run compared with one other."""

    pairings: list[Pairing]
    draws: list[Draw]
    results: Results

    def origins(self) -> list[Timed]:
        """Return the places where the two runs first differ, of all ranks."""
        return [item for pairing in self.pairings if pairing.trains for item in self._of_rank(pairing)]

    def _of_rank(self, pairing: Pairing) -> list[Timed]:
        roots = roots_of(pairing)
        own = {id(draw.event): draw for draw in self.draws}
        at_roots = {id(root.event) for root in roots}
        found: list[Timed] = []
        for root in roots:
            draw = own.get(id(root.event)) or self._before(root, pairing, at_roots)
            if root.kind == "drew" and id(root.event) not in own:
                continue  # its generator only follows: it was in the same state before
            found.append((root.event.time_ns, of_root(root, pairing, draw)))
        return found

    def _before(self, root: Root, pairing: Pairing, at_roots: set[int]) -> Draw | None:
        """Return, of the draws before a root whose numbers went to Python (as an order does), the first of the line
        that drew last: batches are made one after the other. None when there is none.
        """
        if root.kind not in PYTHONS:
            return None
        before = [
            draw for draw in self.draws
            if draw.event.time_ns < root.event.time_ns and draw.pairing.a.rank == pairing.a.rank
            and id(draw.event) not in at_roots
        ]  # fmt: skip
        if not before:
            return None
        last = max(before, key=lambda draw: (bool(draw.pairing.a.place_of(draw.event).file), draw.event.time_ns))
        return next(draw for draw in before if _line(draw) == _line(last))


def _line(draw: Draw) -> tuple[str, str, int]:
    place = draw.pairing.a.place_of(draw.event)
    return draw.event.name, place.file, place.line


def _compared(pairings: list[Pairing]) -> _Compared:
    return _Compared(pairings=pairings, draws=draws_of(pairings), results=_results(pairings))


def _results(pairings: Sequence[Pairing]) -> Results:
    pairs = [(p, one) for p in pairings for one, _ in p.results]
    apart = sorted(((p, one) for p, one in pairs if one.n in p.differs), key=lambda item: item[1].time_ns)
    first = ""
    if apart:
        event = apart[0][1]
        first = f"{event.name}{' after' if event.phase == 'optimizer' else ' of'} step {event.step}"
    return Results(n=len(pairs), n_differ=len(apart), first=first)


def _problem(traces: Sequence[Sequence[Trace]], compared: Sequence[_Compared]) -> str:
    for number, run in enumerate(traces, 1):
        if not any(trace.events for trace in run):
            return f"run {number} holds no bits of operators: record it with --op-bits"
        if not any(event.kind == "result" for trace in run for event in trace.events):
            return f"run {number} finished no step of training"
    for number, each in enumerate(compared, 2):
        if not each.results.n:
            return f"runs 1 and {number} have no step in common"
        missing = {t.rank for t in traces[0]} ^ {t.rank for t in traces[number - 1]}
        if missing:
            return f"runs 1 and {number} have not the same ranks ({sorted(missing)[0]} is in one only)"
    return ""


def _notes(traces: Sequence[Sequence[Trace]], compared: Sequence[_Compared]) -> list[str]:
    notes = [f"{trace.process}: {trace.is_cut}" for run in traces for trace in run if trace.is_cut]
    apart = next((each for each in compared if each.results.n_differ), None)
    if apart is None:
        harmless = [(p, p.by_n[n]) for each in compared for p in each.pairings for n in sorted(p.differs)]
        if harmless:
            pairing, event = harmless[0]
            count = f"{len(harmless):,} event{'s' if len(harmless) > 1 else ''}"
            notes.append(
                f"{count} differed without reaching a loss, gradient or parameter, the first "
                f"{place_words(event, pairing.a.place_of(event))}"
            )
    return list(dict.fromkeys(notes))


def _agree(found: Determinism) -> str:
    runs = len(found.runs)
    ranks = f" on {found.n_ranks} ranks" if found.n_ranks > 1 else ""
    steps = f"{found.n_steps} step{'s' if found.n_steps > 1 else ''}"
    return (
        f"deterministic: in {steps}{ranks}, {runs} runs agree bit for bit in all {found.results.n:,} losses, "
        f"gradients and parameters"
    )


def _differ(found: Determinism) -> str:
    first, results = found.first, found.results
    apart = f"{results.n_differ:,} of {results.n:,} results, from {results.first} on"
    if first is None:
        return f"differs: {apart}; no operator that was seen is the first"
    name = first.op.removeprefix("aten.").partition(".")[0] if first.op.startswith("aten.") else first.op
    return f"differs: {name} {first.what}, {moment(first.phase, first.step)}"
