"""Each step draws the same random numbers.

What it means
    The generators of torch stand at the beginning of each step where they stood at the one before, although numbers are
    drawn in between: a seed is set in the training loop. Dropout leaves out the same units in every step, noise is the
    same noise: the model that is trained is not the one that was meant. Or something seeds now and then, a sampler that
    makes pictures for one, and the steps after it draw what those after the last time drew. Or `sampler.set_epoch` is
    not called, or a generator is seeded before each pass: data is shuffled once, and comes in that order ever after.

How it is decided
    The states of torch's generators before the first forward of a step: four steps (of the first eight and powers of
    two) began at one state, and in each the state had changed by the time of the update. Or, at any step: three in a
    row, updates of one optimizer, began each where an earlier one had, all as many steps before, and each elsewhere
    than the one before it; `torch.manual_seed` was called before the first of them and not before the others, and
    nothing was loaded into the model or the optimizer since. Or the indices that a random
    sampler of torch has drawn: three passes in a row began with the same batches (up to 64, and eight samples or more),
    and an update was made of the third. Or a loader with several workers and no `worker_init_fn`, whose dataset, or
    what it calls, holds a random generator and uses it to make a sample; or a `worker_init_fn` that seeds and asks for
    no number that tells workers apart.

What to do
    Set the seed once, before the loop; give who wants numbers of its own a `torch.Generator`, or `fork_rng`.

When it is wrong
    Who wants the same noise in each step, to compare steps with each other.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.law_rows import ALIKE_WORKERS, DRAWS_AGAIN, SAME_DRAWS, SAME_ORDER
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Remedy


@rule(
    "HC239", "config", severity="warning", reads=("optimizer",), asked="rows",
    not_in={"mindspore": "kernels count the calls that they draw at: a seed does not set them back"},
)  # fmt: skip
def check(window: Window) -> Iterator[Finding]:
    """Fire at the step at which it is seen."""
    for row in window.by_phase["optimizer"]:
        if row.port == ALIKE_WORKERS:
            n = round(row.summary.sum)
            yield Finding(
                code="HC239", kind="config", severity="warning", step=row.step, rank=window.rank, site="",
                title=f"all workers of a loader draw the same random numbers: {row.module}", phase="data",
                cause="rng-desync", confidence="likely",
                why=(f"each of {n} workers has a generator in the same state, and nothing seeds them differently",),
                then=("samples that different workers make get the same noise, crop, or mask",),
                remedy=Remedy(action="seed-workers", text="seed it in worker_init_fn from torch.initial_seed()"),
            )  # fmt: skip
        elif row.port == SAME_ORDER:
            n = round(row.summary.sum)
            yield Finding(
                code="HC239", kind="config", severity="warning", step=row.step, rank=window.rank, site="",
                title="each pass over the data comes in the same order", phase="data", cause="rng-desync",
                confidence="proven", why=(f"{n} passes in a row {row.module}, which shuffles, drew the same samples",),
                then=("the batches of every pass are made of the same samples",),
                remedy=Remedy(action="shuffle-anew", text="call sampler.set_epoch(epoch), and seed no generator anew"),
            )  # fmt: skip
        elif row.port == DRAWS_AGAIN:
            n, step = round(row.summary.sum), row.step
            since = (
                f"steps {step - n + 1} to {step} began where steps {step - n + 1 - row.call} to {step - row.call} did"
            )
            yield Finding(
                code="HC239", kind="config", severity="warning", step=step, rank=window.rank, site=row.site,
                title="steps draw the same random numbers as earlier ones", phase="forward", cause="rng-desync",
                confidence="proven", why=(f"{since}: torch's generator ({row.module}) was seeded in between",),
                then=("noise, dropout and what is sampled come again",), source=row.source,
                remedy=Remedy(action="seed-once", text="give what seeds here a torch.Generator of its own"),
            )  # fmt: skip
        elif row.port == SAME_DRAWS:
            n = round(row.summary.sum)
            yield Finding(
                code="HC239", kind="config", severity="warning", step=row.step, rank=window.rank, site=row.site,
                title="each step draws the same random numbers", phase="forward", cause="rng-desync",
                confidence="proven", why=(f"{n} steps began at one state of torch's generators, and drew from there",),
                then=("dropout leaves out the same units in every step",),
                remedy=Remedy(action="seed-once", text="set the seed once, before the training loop"),
            )  # fmt: skip
