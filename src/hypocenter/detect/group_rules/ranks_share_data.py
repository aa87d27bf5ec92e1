"""Ranks see the wrong data: data-parallel ranks the same, or tensor-parallel ranks another.

What it means
    Data-parallel ranks that are all given the same batch do the same work N times: the run is N times slower than
    it looks, and its real batch N times smaller. Tensor-parallel ranks that are given different tokens compute
    parts of different things and add them up.

How it is decided
    Digests of what the model is called with, on the first steps and those of `--replicas`. Shared: all arguments are
    equal on all ranks of a data-parallel group at each of the steps looked at, at least three, and change from step to
    step (a batch that is trained on over and over, such as a whole graph, is a note). Equal draws of noise are no
    batch: where random states are equal too and the losses are not, ranks were given more than what was seen. Or, in
    a pass of the ranks over their data, more than a fifth of all rows, by their digests, came on several of them, and
    fewer than half as many came on one again, which they do where rows are drawn or dealt out anew. Of two ranks that
    each shuffle by a seed of their own before they take every second sample, a third comes on both. Different:
    whole numbers (token ids) of the same argument and shape are not the same within a tensor-parallel group.

    Alike beside the data: one of several arguments is the same on all data-parallel ranks at each of the steps looked
    at, at least three, and another at each, while the rest is each rank's own and their generators stand at one state:
    a note. A diffusion model is then trained on one draw of noise and timesteps for all ranks.

What to do
    Shared: give the DataLoader a `DistributedSampler` and call `set_epoch`, or make the seed of the data depend on
    the data-parallel rank; seed what draws noise by it too. Different: load on the first tensor-parallel rank and
    broadcast, or seed by the data-parallel rank only.

When it is wrong
    Shared data can be meant: a debugging run, distillation from one stream, a comparison of replicas. Different
    tokens can be meant where each tensor-parallel rank is given its part of the sequence by hand. Alike beside the data
    is what ranks agree upon: the lengths of a bucket, the task of a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from hypocenter.detect.group_engine import group_rule
from hypocenter.detect.panel import Panel
from hypocenter.detect.rank_words import ranks_text, who
from hypocenter.detect.replica_track import is_last
from hypocenter.detect.shared_rows import Shared
from hypocenter.detect.stream_track import OtherData, SameData, track
from hypocenter.nouns import Finding, Remedy

NEARLY_ALL, PARTS = 0.95, 0.5  # of the rows of a pass
AT_LEAST = 3  # steps that were looked at: padding and small data sets make two alike now and then


@group_rule("HC305", "data", severity="warning", reads=("digest", "local"), asked="unlike", beside="HC301")
def check(panel: Panel) -> Iterator[Finding]:
    """At the last step, judge the data of the whole run."""
    known = track(panel)
    if not is_last(panel):
        return
    for ranks, n_steps in known.n_batches.items():
        same = [each for each in known.same if each.ranks == ranks]
        if n_steps >= AT_LEAST and len(same) == n_steps:
            yield _shared(same)
            break
    else:
        if (rows := known.shared_rows.found()) is not None:
            yield _shared_rows(rows)
    alike = (
        (*key, len(digests))
        for key, digests in known.beside.items()
        if len(digests) >= AT_LEAST and None not in digests and len({*digests}) == len(digests)
    )
    yield from (_beside(*each) for each in list(alike)[:1])
    if known.other and len({each.step for each in known.other}) >= min(AT_LEAST, known.n_tp_batches):
        yield _different(known.other[0])


def _shared(same: list[SameData]) -> Finding:
    first, n_batches = same[0], len({each.digests for each in same})
    n_changes = sum(one.digests != other.digests for one, other in pairwise(same))
    is_one = 2 * n_changes < len(same) - 1  # or few of them, each over and over
    what = "one batch, over and over" if n_batches == 1 else "the same batches"
    return Finding(
        code="HC305",
        kind="data",
        severity="note" if is_one else "warning",
        title=f"data-parallel ranks are all given {what}",
        step=first.step,
        rank=first.ranks[0],
        ranks=tuple(first.ranks),
        phase="data",
        site="batch",
        cause="data-mismatch",
        confidence="possible" if is_one else "likely",
        why=(
            f"what the model is called with has the same bits on {ranks_text(first.ranks)} at all {len(same)} steps "
            f"looked at ({n_batches} different)",
        ),
        remedy=Remedy(
            action="distributed-sampler",
            text="give each rank its own part of the data: a DistributedSampler, or a seed that depends on the rank",
        ),
    )


def _shared_rows(rows: Shared) -> Finding:
    ranks = ranks_text(rows.ranks)
    when = "a first pass over the data" if rows.step == 0 else f"the pass that began at step {rows.step}"
    share = rows.n_shared / rows.n_rows
    part = "all samples" if share > NEARLY_ALL else f"{share:.0%} of the samples"
    are_parts = share < PARTS  # of an order of each rank's own
    return Finding(
        code="HC305", kind="data", severity="warning", step=rows.step, rank=rows.ranks[0], ranks=tuple(rows.ranks),
        title=f"data-parallel ranks do not share out the data: {part} come on several of them",
        phase="data", site="batch", cause="data-mismatch", confidence="likely",
        why=(
            f"of {rows.n_rows} rows that {ranks} were given in {when}, {rows.n_shared} came on more than one of them",
            *(("each shuffles by itself before it takes its part",) if are_parts else ()),
        ),
        then=("others come on no rank in this pass",) if are_parts else (),
        remedy=Remedy(
            action="distributed-sampler",
            text="give each rank its own part of one order: a DistributedSampler with the same seed on all ranks",
        ),
    )  # fmt: skip


def _beside(ranks: tuple[int, ...], argument: str, n_steps: int) -> Finding:
    name = argument.removeprefix("batch.")
    return Finding(
        code="HC305", kind="data", severity="note", step=0, rank=ranks[0], ranks=ranks, phase="data", site=argument,
        title=f"data-parallel ranks are all given the same {name}, beside data of their own",
        cause="data-mismatch", confidence="possible",
        why=(
            f"{name} has the same bits on {ranks_text(ranks)} at all {n_steps} steps looked at, and others at each",
            "the generators that they draw from are in one state",
        ),
        then=("if it is drawn (noise, timesteps, masks), all ranks together see as many draws as one",),
        remedy=Remedy(action="seed-by-rank", text="seed what draws it by the data-parallel rank"),
    )  # fmt: skip


def _different(other: OtherData) -> Finding:
    return Finding(
        code="HC305",
        kind="data",
        severity="error",
        title=f"tensor-parallel ranks are given different {other.argument.removeprefix('batch.')}",
        step=other.step,
        rank=other.odd[0] if other.odd else other.ranks[0],
        phase="data",
        site=other.argument,
        port="digest",
        cause="data-mismatch",
        confidence="likely",
        why=(f"{who(other.ranks, other.odd)}: whole numbers of the same shape",),
        remedy=Remedy(action="broadcast-data", text="load on one tensor-parallel rank and broadcast to the others"),
    )
