"""Rows about the health of a run: the contract between `run --health` and the measures of `hypocenter health`.

Rows of phase `optimizer`, marked `replay`, with the op HEALTH; written at the steps of `--health` (hypocenter.session.
observers.health). Their numbers are in `sketch`, in the order given here. `call`: the n-th operator of its kind there.

    site <module>, port `units`      an activation, by unit (channel): units; of them off in this micro-batch; off in
                                     each of the last LOOKS looks; looks so far; rows of this micro-batch; share of
                                     elements that are on; then numbers of units that were off in all LOOKS looks
    site <module>, port `gates`      a sigmoid or tanh, by unit: units; share of elements that are saturated; units of
                                     which all elements were, in each of the last LOOKS looks; looks so far
    site <module>, port `choices`    a softmax that is no attention: rows; share of rows of which one element has all
    site <module>, port `logits`     the largest attention logit of each head; `dtype`: of the logits
    site <module>, port `entropy`    mean entropy of attention of each head, over that of a uniform one
    site <module>, port `load`       share of all choices that each expert gets
    site <module>, port `router`     experts; chosen for each row; rows; mean entropy over that of a uniform choice;
                                     mean probability of the last that is chosen less that of the next; experts times
                                     the sum of load times mean probability (1: balanced); experts that got nothing in
                                     each of the last LOOKS looks; looks so far
    site <module>, port `rank`       what a product with a parameter reads: effective rank; largest possible; rows
    site <parameter>, port `update`  norm before the update; norm of the update; elements looked at; elements in all
    site <parameter>, port `moved`   it asks for no gradient and has moved since the look before: norm of the change
                                     over its norm; step of that look
    site `health`, port `noise`      mean square norm of the gradients of micro-batches; square norm of their mean;
                                     how many; samples in each (0: not known)
    site `health`, port `looked`     operators that were seen; parameters that ask for no gradient
"""

from __future__ import annotations

HEALTH = "health"  # op of all these rows, and site of those about the whole run
UNITS, GATES, CHOICES = "units", "gates", "choices"
LOGITS, ENTROPY = "logits", "entropy"
LOAD, ROUTER = "load", "router"
RANK = "rank"
UPDATE, MOVED = "update", "moved"
NOISE, LOOKED = "noise", "looked"
LOOKS = 4  # in a row, after which a unit or an expert that never answered is said to be dead
NAMED = 8  # units that are named
SAMPLE = 1 << 16  # elements of a parameter that are looked at
