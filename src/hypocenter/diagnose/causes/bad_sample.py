"""A few samples of the batch make the loss or the gradient jump.

What it means
    Without them the step is as usual, with them alone it jumps: an outlier, a wrong label, a damaged record. One such
    step can undo hours of training, and an optimizer with momentum goes on with it for many steps.

How it is decided
    The step is done again without the named rows of the batch, and with them alone; where that shows nothing, because
    the loss compares rows with each other, with them and half of the others. They are at most an eighth of the batch.
    A jump of less than 8 times the usual (of more where fewer than 32 steps were before it) stays a note: in a healthy
    run a hard sample makes one now and then. So does one of loss and gradient up to what the run has survived before:
    a model that has learned its task to a loss of 0.01 has harder samples still, and it learned from losses and
    gradients as large when it knew nothing; and where gradients have a heavy tail, as in reinforcement learning, new
    records by less than half an octave keep coming.

What to do
    Look at the samples in the data set: repair or leave them out. Clipping the gradient bounds what they can do.

When it is wrong
    When the samples are right, and only hard: then they are what the model has still to learn.
"""

from __future__ import annotations

from hypocenter.diagnose import why
from hypocenter.diagnose.evidence import Evidence, Verdict
from hypocenter.diagnose.numbers import listed, short
from hypocenter.diagnose.rulings import fact
from hypocenter.diagnose.spike_words import grown, is_far, jumped, sizes, what_jumped
from hypocenter.diagnose.verdicts import cause


@cause("bad-sample", order=22, of_spikes=True)
def decide(evidence: Evidence) -> Verdict | None:
    """Confirmed by replays, where no operation is to blame."""
    is_of_batch = evidence.leaf is None or evidence.leaf_kind in ("batch", "external")
    if not evidence.samples_confirmed or not evidence.samples or not is_of_batch:
        return None
    if evidence.origin is not None and evidence.leaf is None:
        return None
    n = len(evidence.samples)
    who = f"samples {listed(evidence.samples)} of the batch make" if n > 1 else f"sample {evidence.samples[0]} makes"
    held: tuple[str, ...] = ()
    if (how := grown(evidence)) and evidence.leaf is not None:
        held = (f"{why.leaf_name(evidence)} holds values {how}", *sizes(evidence))
    within = fact(evidence, "within")
    began = () if within is None else (f"the run has had values as large before ({short(within)})",)
    return Verdict(
        cause="bad-sample",
        confidence="proven" if within is None and is_far(evidence) else "likely",
        title=f"{who} {what_jumped(evidence)} jump",
        why=(*jumped(evidence), *began, *held),
        limit=fact(evidence, "usual_size"),
        actual=fact(evidence, "size"),
        advice="look at these samples where batches are made; clip the gradient",
    )
