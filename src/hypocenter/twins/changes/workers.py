"""The number of DataLoader workers changes nothing.

What it means
    Workers only fetch. If the batches change with their number, each worker draws the same random numbers, gives the
    same samples of a stream, or keeps something between samples that the others do not see.

How it is decided
    Without workers against with as many as the program gives its loaders, at least two (`workers=N`: with N). Random
    numbers that a dataset draws are held by the indices of the batch in both runs, so that they may differ by nothing
    else; in each worker the state in which its generators begin is compared with the other workers'. Every batch, and
    with it every module, must be equal to the bit.

What to do
    Seed each worker's generator by `torch.utils.data.get_worker_info().seed`, and split a stream by `.id` and
    `.num_workers`.

When it is wrong
    A stream that is split over its workers gives its samples in another order: then nobody can tell. Generators that
    the dataset does not hold (globals of a module, another process) are not held.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from hypocenter.record.reader import open_run
from hypocenter.twins.answer import Place, Twin
from hypocenter.twins.change import Asked, change
from hypocenter.twins.judging import answer, judge
from hypocenter.twins.options import recording
from hypocenter.twins.runs import NotApplicableError
from hypocenter.twins.state import states_of

_DRAWS = re.compile(r"worker (\d+) draws from (.+) at ([0-9a-f]+)")
_STREAM = "an iterable dataset is read"
_LOADER = "a DataLoader of "


@change("workers", order=3, values="N")
def workers(asked: Asked) -> Twin:
    """Compare no workers with the program's own number, or with a given one."""
    number = str(asked.number(0)) if asked.value else "own"
    make, steps = asked.runs.make, asked.steps
    baseline = make("no-workers", recording(asked, steps, change=("workers=0",)), words=asked.first_words).recorded()
    noted = baseline.noted.get("workers", [])
    if not any(line.startswith(_LOADER) for line in noted):
        raise NotApplicableError(
            "the program makes no DataLoader",
            where="hypocenter twin workers",
            why="batches come from elsewhere, or it was made before torch was there",
        )
    again = make("no-workers-again", recording(asked, steps, change=("workers=0",)), words=asked.first_words)
    changed = make("workers", recording(asked, steps, change=(f"workers={number}",)), words=asked.second_words)
    judged = judge(baseline, again, changed, is_exact=True)
    noted = changed.noted.get("workers", [])
    number = next((line.rpartition(" ")[2] for line in noted if line.startswith(_LOADER)), number)
    found = answer(judged, (baseline, again, changed), f"with {number} workers in place of none")
    twice = drawn_twice(noted)
    if twice:
        return _draws_the_same(found, twice)
    if found.status != "differs" or found.first is None or found.first.phase != "data":
        return found
    if _STREAM not in noted:
        return replace(
            found,
            cause="worker-dependent-data",
            confidence="likely",
            fix="look for what the dataset keeps between two samples: a worker has a copy of it",
        )
    repeated = _repeated(open_run(baseline.directory), open_run(changed.directory))
    if repeated is not None:
        return replace(
            found,
            cause="stream-not-split",
            confidence="proven",
            first=Place(step=repeated, phase="data", site="batch"),
            sentence=f"differs: each of {number} workers gives the same samples of the stream: the batch of step "
            f"{repeated} was there before",
            fix="give each worker its own part, by get_worker_info().id and .num_workers",
        )
    return replace(
        found,
        status="cannot-tell",
        first=None,
        sentence="cannot tell: workers give the samples of a stream in another order, and no batch came twice",
    )


def drawn_twice(noted: Iterable[str]) -> Mapping[str, list[int]]:
    """Return generators that several workers drew from beginning in one state, with the ids of these workers."""
    began: dict[tuple[str, str], list[int]] = defaultdict(list)
    for line in noted:
        match = _DRAWS.fullmatch(line)
        if match is not None:
            began[match[2], match[3]].append(int(match[1]))
    return {name: sorted(set(ids)) for (name, _), ids in began.items() if len(set(ids)) > 1}


def _draws_the_same(found: Twin, twice: Mapping[str, list[int]]) -> Twin:
    name, ids = next(iter(twice.items()))
    who = f"workers {', '.join(map(str, ids[:-1]))} and {ids[-1]}"
    seed = "worker_init_fn, by torch.utils.data.get_worker_info().seed"
    return replace(
        found,
        status="differs",
        cause="workers-draw-the-same",
        confidence="proven",
        first=Place(step=0, phase="data", site=name),
        sentence=f"differs: {who} draw the same random numbers: {name} begins in one state in both",
        why=(f"each of them drew from {name} in its first batch",),
        fix=f"seed it in each worker: {seed}",
    )


def _repeated(*runs: object) -> int | None:
    """Return the first step whose batch the changed run had before; None if there is none, or without workers too."""
    right, changed = ([one.of("batch") for one in states_of(run, frozenset())] for run in runs)  # type: ignore[arg-type]
    if any(batch in right[:n] for n, batch in enumerate(right)):
        return None
    return next((n for n, batch in enumerate(changed) if batch and batch in changed[:n]), None)
