"""An input is written over before its backward has used it.

What it means
    Backward reads what forward was given: the input of the first layer for the gradient of its weight, token ids for
    that of the embedding, labels for that of the loss. Autograd keeps a reference, no copy. Something has put other
    values there in between, unseen: a loader that fills a NumPy buffer again too early, a write to `.data`, a kernel of
    an extension, the next micro-batch that another stage of a pipeline has sent into the same buffer. The gradient is
    that of one batch's activations with another batch's inputs.

How it is decided
    At steps 0, 1, 2, 4, ... and every eighth, and at those of `--audit`, up to 256 elements of each input are kept at
    the call (in MindSpore: when forward is over) and compared when backward is over; what a collective outside of
    modules, or `recv`, is about to write to is copied before. It fires, once, when some have changed while torch's
    version counter of the tensor has stayed, or by what other ranks sent, and the forward, done again, saves this very
    memory for its backward.

What to do
    Fill the buffer when backward is over, or hand a copy to the model (`torch.tensor(array)`, `x.clone()`,
    `mindspore.Tensor(array)`).

When it is wrong
    Where whoever wrote there has put the values back while backward ran.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.law_rows import GIVEN_CHANGED
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Remedy


@rule("HC264", "desync", severity="warning", reads=("optimizer",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire at the step at which it is seen."""
    for row in window.by_phase["optimizer"]:
        if row.port == GIVEN_CHANGED:
            shape = " x ".join(map(str, row.shape))
            yield Finding(
                code="HC264", kind="desync", severity="warning", step=row.step, rank=window.rank, phase="forward",
                site=row.site, microbatch=int(row.op or 0), cause="state-changed", confidence="proven",
                title=f"{row.site} is written over before its backward has used it",
                why=(
                    f"{round(row.summary.sum)} of {row.call} elements that were looked at ({row.dtype} {shape}, given "
                    f"to {row.module}) are others when backward is over than before",
                    *(row.names or ("torch has seen no write: its version counter has stayed",)),
                    "forward, done again, keeps this memory for its backward",
                ),
                then=("the gradient is made of the activations of one batch and the inputs of another",),
                remedy=Remedy(action="copy-input", text="fill the buffer after backward, or give the model a copy"),
            )  # fmt: skip
