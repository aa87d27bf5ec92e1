"""Samples of a batch depend on each other.

What it means
    The output for a sample changes when other samples of its batch are replaced. Something mixes them: a view or a
    transpose over the wrong dimensions, statistics or a softmax over the axis of the batch, a state that one sample
    leaves for the next. The loss falls, and the model gives other answers alone than in a batch. Or documents that are
    packed into one row see each other; or the edges of all graphs of a batch lie among its first nodes. Or it is not
    the model but the loop: noise levels of shape [B] times a batch of [B, B] run along the features, and targets of
    [B, 1] less values of [B] give each pair. Or edges join nodes of different graphs.

How it is decided
    With `--relations` the last micro-batch of a healthy step is done again: every second row takes the values of its
    neighbour. Shapes and random numbers are the same, dropout is held, so what is independent stays to the bit. The
    first module whose output for an untouched row moves is named. In float32 each half of the batch is run by itself,
    too: what counts samples shows there. Inputs whose second dimension may be the batch, that
    say which rows belong together, or that come alone accuse nobody. Where positions begin anew inside a row, and the
    loss does not ask across, every second document is replaced, and the outputs for the others must stay.
    So with every second graph, where edges join graphs and reach only the first of them. What the loop itself computes
    in such a step, before the model and between model and loss, is done again with other samples in every second place:
    an operation that goes element by element, of two tensors that hold a row for each sample, must leave the others
    alone. The first that does not is named, if what it makes is given to the model, or to the loss and only averaged.
    Edges, [2, edges], are looked at in each micro-batch whose model is given the number of each node's graph beside
    them, which begins at 0 and grows by 0 or 1: they join nodes of one graph. Told of after four micro-batches, where
    none crossed in one before, or fewer than half do in each.

What to do
    Look at the named module: which of its dimensions does it take for the batch? In the loop: give both tensors as many
    dimensions.

When it is wrong
    Where samples are meant to meet: contrastive parts, graphs without a list of edges. BatchNorm with averages is held
    at these; without averages it is told as a note, as is a module that keeps a statistic of its batch in a buffer, or
    in an attribute on whose old value its outputs depend (a range for quantization). So are experts with a capacity, if
    all rows that move were given to the same experts, only to fewer of them. In the loop products of matrices,
    statistics, mixtures by an index and pairs that are written out (`a[:, None] - b`) accuse nobody, nor does what may
    as well be one number for each feature.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.relation_rows import broken, wrong
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Remedy


@rule(
    "HC241",
    "data",
    severity="warning",
    reads=("optimizer",),
    asked="rows",
)
def check(window: Window) -> Iterator[Finding]:
    """Fire at the step at which it is seen."""
    remedy = Remedy(
        action="separate-samples",
        text="look at views, norms and softmax of the named module: over which dimension do they go?",
    )
    documents = Remedy(
        action="separate-documents",
        text="give attention a mask of blocks, or the lengths of the documents; in transformers position_ids without "
        "attention_mask",
    )
    offsets = Remedy(action="move-edges", text="add the number of the nodes before a graph to its edges")
    yield from broken(
        window, "HC241", title="samples of a batch depend on each other", cause="sample-leak", remedy=remedy,
        others={
            "documents": ("documents packed into one row depend on each other", documents),
            "graphs": ("graphs of one batch depend on each other: edges are not moved behind the first", offsets),
        },
    )  # fmt: skip
    yield from wrong(window, "HC241", cause="sample-leak")
