"""Rows about what becomes of a micro-batch's gradient: the contract between observers and the rules HC331, 332, 336.

Rows of phase `optimizer`, written by hypocenter.session.observers (recompute, arrivals, token_weights). A step in which
all is well writes none of them. `microbatch` is the micro-batch that a row is about.

    site `micro-batches`, port `recompute_zeros`  of a sample of an output that activation checkpointing computed twice:
                                          n elements, sum of them zero in one of the two only; `module`: module's name
    site <module>, port `recompute_gap`   norm of the difference between the two by the norm of the first; `module`:
                                          its class. The first module in order of execution whose gap is above GAP
    site <module>, port `recompute_in`    the same for what was given to the module both times, where it is known
    site `micro-batches`, port `not_added`  n parameters got a gradient in this micro-batch, sum of them hold the same
                                          accumulated gradient as before it; `call`: micro-batches so far in the step
    site <parameter>, port `not_added`    of a sample of one of them: n elements that were to change, sum did not
    site `micro-batches`, port `n_labels` labels of this micro-batch that count in its cross-entropy; `call`: labels in
                                          all, also those that are ignored
    site `micro-batches`, port `loss_share`  the weight that the micro-batch has in the loss, by that of all of the step
    site `micro-batches`, port `token_gap`  gradient as used against the one in which every label weighs the same, by
                                          replay: norm of the difference by the norm of the latter
    site `label_weight`, port `value`     with context parallelism: the weights of all labels of this rank in the loss
                                          of the step, added up; 1 for a mean over them
"""

from __future__ import annotations

from collections.abc import Sequence

SITE = "micro-batches"
RECOMPUTE_ZEROS, RECOMPUTE_GAP, RECOMPUTE_IN = "recompute_zeros", "recompute_gap", "recompute_in"
NOT_ADDED = "not_added"
N_LABELS, LOSS_SHARE, TOKEN_GAP, LABEL_WEIGHT = "n_labels", "loss_share", "token_gap", "label_weight"

UNEVEN, FAINTLY_UNEVEN = 0.1, 0.05
"""Shares of the loss that labels of some micro-batches have at the cost of others: a warning, a note."""

GAP = 0.02
"""Relative. Kernels that add in no fixed order differ by up to 0.004 in bfloat16; dropout of 1 % differs by 0.14."""


def unevenness(shares: Sequence[float], counts: Sequence[float]) -> float:
    """Return the share of the loss that labels of some micro-batches have at the cost of others, 0 to 1.

    Args:
        shares: the weight of each micro-batch in the loss of the step, in any unit.
        counts: its labels that count.
    """
    whole, n = sum(shares), sum(counts)
    return sum(abs(share / whole - count / n) for share, count in zip(shares, counts, strict=True)) / 2
