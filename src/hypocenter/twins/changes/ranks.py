"""A batch on one rank, and the same batch divided over several, make the same step.

What it means
    Data-parallel ranks compute parts of one batch, and average their gradients. Where they do not, replicas drift
    apart; where the average is a sum, the step is as many times too large; where each rank takes the same samples, the
    job sees a part of the data again and again.

How it is decided
    The program in one process against `torchrun` with two ranks (`ranks=N`: with N), each of which takes a part of the
    batch. In a Trainer of Transformers that is imposed; else say how with `--candidate-args "--batch 4"`. The samples
    of all ranks together must be those of the one. Gradients, parameters, optimizer state and learning rate of each
    step are compared: they may differ by rounding, whose size replays measure.

What to do
    Wrap the model (DDP, FSDP), divide what is summed by hand by the number of ranks, and use a DistributedSampler.

When it is wrong
    BatchNorm in training and losses over pairs of samples depend on the number of samples by definition. Where the
    order of the data depends on the number of ranks nobody can tell.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

from hypocenter.compare.comparison import Comparison, Spot
from hypocenter.detect.replica_rows import BATCH_PREFIX, ROW_PLACES
from hypocenter.record.reader import RecordedRun, open_run
from hypocenter.twins.answer import Place, Twin
from hypocenter.twins.change import Asked, change
from hypocenter.twins.judging import answer, gradient_factor, judge
from hypocenter.twins.options import recording
from hypocenter.twins.runs import NotApplicableError

_PHASES = ("param", "grad", "optimizer")
_NEAR = 1e-2  # relative: a factor this near to the number of ranks is it


@change("ranks", order=11, values="N")
def ranks(asked: Asked) -> Twin:
    """Compare one rank with several."""
    n = asked.number(2, least=2)
    calm, make = replace(recording(asked, max(asked.steps, 2), calibrated=True), no_dropout=True), asked.runs.make
    one = make("one-rank", calm, words=asked.first_words).recorded()
    facts = open_run(one.directory).facts()
    if facts is not None and "mindspore" in facts.settings:
        raise NotApplicableError(
            "a MindSpore program is not made a job of several ranks",
            where="hypocenter twin ranks",
            why="ranks are started by torchrun",
            fix="record both jobs with `hypocenter run` and compare them with `hypocenter diff`",
        )
    imposed = () if asked.second_words else (f"accumulation={n},ranks",)
    many = make(
        "ranks", replace(calm, change=imposed, calibrate="never"), words=asked.second_words, n_ranks=n
    ).recorded()
    if imposed and "accumulation" not in many.noted:
        raise NotApplicableError(
            "nobody makes the batches of a rank smaller",
            where="hypocenter twin ranks",
            why="no Trainer of Transformers was made",
            fix="say how: --candidate-args '--batch-size 4', in the words of the program",
        )
    first, second = open_run(one.directory), open_run(many.directory)
    if len(second.ranks) != n:
        raise NotApplicableError(
            f"{len(second.ranks)} ranks were recorded in place of {n}",
            where="hypocenter twin ranks",
            why="the program does not begin a process group under torchrun",
        )
    again = make("one-rank-again", calm, words=asked.first_words)
    judged = judge(one, again, many, is_exact=False, wanted=_is_of_step)
    found = answer(judged, (one, again, many), f"on {n} ranks in place of one")
    return (
        _of_data(found, first, second)
        or _of_replicas(found, first, second)
        or _explained(found, judged.comparison, gradient_factor(judged.comparison, one, many), n)
    )


def _is_of_step(spot: Spot) -> bool:
    return spot.phase in _PHASES


def _of_data(found: Twin, one: RecordedRun, many: RecordedRun) -> Twin | None:
    """Return the answer where the ranks together do not take the samples of the one; None where they do."""
    pairs = list(itertools.product(_samples(one), _samples(many)))
    if not pairs:
        return None
    # Under a wrapper an input has another name, so that is the same one which has most samples in common.
    right, theirs = max(pairs, key=lambda pair: (len(pair[0].keys() & pair[1].keys()), len(pair[0])))
    if right == theirs:
        return None
    if set(theirs) < set(right) and max(theirs.values()) > max(right.values()):
        return replace(
            found,
            status="differs",
            cause="ranks-share-data",
            confidence="proven",
            first=Place(step=0, phase="data", site="batch"),
            sentence="differs: several ranks take the same samples at step 0",
            why=(f"{len(theirs)} samples are taken in place of {len(right)}",),
            fix="give each rank its own part: a DistributedSampler",
        )
    return replace(
        found,
        status="cannot-tell",
        first=None,
        why=("the order of the data depends on the number of ranks",),
        sentence="cannot tell: at step 0 the ranks together take other samples than one rank does",
    )


def _of_replicas(found: Twin, one: RecordedRun, many: RecordedRun) -> Twin | None:
    """Return the answer where ranks that hold a whole parameter do not hold the same one; None where they do."""
    whole = {row.site: row.summary.n for row in one.readings(phase="param", rank=one.ranks[0])}
    held = [list(_whole_parameters(many, rank, whole)) for rank in many.ranks]
    for mine, *theirs in zip(*held, strict=False):
        step, site, _ = mine
        if any(other[:2] == (step, site) and other != mine for other in theirs):
            begins = "begin with other values" if step == 0 else f"are not the same after step {step - 1}"
            return replace(
                found,
                status="differs",
                cause="missing-gradient-sync" if step else "replicas-begin-apart",
                confidence="proven",
                first=Place(step=max(step - 1, 0), phase="optimizer" if step else "param", site=site, port="value"),
                sentence=f"differs: the copies of {site} on the ranks {begins}",
                fix="wrap the model (DDP, FSDP), or average gradients over all ranks before the update",
            )
    return None


def _whole_parameters(run: RecordedRun, rank: int, sizes: Mapping[str, int]) -> Iterator[tuple[int, str, object]]:
    for row in run.readings(phase="param", rank=rank):
        one = row.summary
        if row.port == "value" and one.n == sizes.get(row.site):
            yield row.step, row.site, (one.min, one.max, one.sum, one.sumsq)


def _samples(run: RecordedRun) -> list[Counter[int]]:
    """Return for each input of step 0 the digests of its rows over all ranks, and how often each is there."""
    found: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for rank in run.ranks:
        for row in run.readings(steps=[0], site=f"{BATCH_PREFIX}*", phase="data", rank=rank):
            if row.row_digests:
                found[row.site].update(digest // ROW_PLACES for digest in row.row_digests)
    return list(found.values())


def _explained(found: Twin, comparison: Comparison, scale: float | None, n: int) -> Twin:
    first = comparison.first
    if found.status == "same" and any(row.distance is None for row in comparison.rows):
        return replace(
            found,
            status="cannot-tell",
            sentence="cannot tell: of some values nobody knows how the ranks hold them together",
        )
    if found.status != "differs" or first is None or first.row is None or first.row.distance is None:
        return found
    if first.phase == "grad" and scale is not None and math.isclose(scale, n, rel_tol=_NEAR):
        return replace(
            found,
            cause="gradients-summed",
            confidence="likely",
            why=(f"gradients are {scale:.4g} times those of one rank: they are added up, and not divided", *found.why),
            fix="divide what all_reduce gives by the number of ranks",
        )
    return replace(
        found,
        cause="missing-gradient-sync" if first.phase == "grad" else "rank-dependence",
        confidence="possible",
        fix="average gradients over all ranks before the update, and begin with equal parameters",
    )
