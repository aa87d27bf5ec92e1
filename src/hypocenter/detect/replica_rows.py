"""Rows about what should be equal over ranks: what the observers write and the rules over ranks read.

| phase | site | port | holds |
| --- | --- | --- | --- |
| param | parameter | replica | of a parameter, with its placement; call 0: before the update, 1: after the last |
| param | parameter | replica.read | some of what the loss is made of and nobody trains |
| grad | parameter | replica.grad | of its gradient as the optimizer sees it; sum of squares, small sketch |
| optimizer | parameter | replica.KEY | digest of each tensor of its optimizer state, after the update |
| param | replicas.rewritten | value | how often a parameter was changed between two updates so far (averaging) |
| param | replicas.unwrapped | value | parameters of the optimizer outside every DDP wrapper, where there is one |
| optimizer | clip_coef | value | what gradients were multiplied by between backward and the update |
| data | rng.STREAM | state | digest of a random state before the step's first forward |
| data | batch.ARGUMENT | digest | digest and shape of a tensor that the model was called with, for each micro-batch |
| data | batch.ARGUMENT | field | of floats the same of a sample, at every step, and moments (whole numbers: above) |
| data | batch.loader | worker | of an IterableDataset with several workers: how many (n), and which batch it is (sum) |
| data | batch.loader | indices | of a loader that reads its data in order: first (min), last (max), how many (n) |
| data | batch.attempt | attempt | number of an attempt that goes on from a checkpoint, at its first step |
| data | batch.loss[N] | digest | of the N-th integer tensor that only code after the model used (labels) |
| optimizer | lr.group[N] | value | learning rate of a parameter group after the first |
"""

from __future__ import annotations

PARAM, GRAD, STATE_PREFIX = "replica", "replica.grad", "replica."
READ = "replica.read"  # without a placement: it is compared in its own way (read_copies)
BEFORE, AFTER = 0, 1  # Reading.call of a parameter's digest
REWRITTEN, UNWRAPPED = "replicas.rewritten", "replicas.unwrapped"
CLIP = "clip_coef"
RNG_PREFIX, RNG_PORT = "rng.", "state"
BATCH_PREFIX, BATCH_PORT, FIELD_PORT = "batch.", "digest", "field"
BATCH_LOSS = "batch.loss["
LOADER, WORKER_PORT, INDICES_PORT = "batch.loader", "worker", "indices"
ATTEMPT = "batch.attempt"
ROW_PLACES = 1 << 12  # Reading.row_digests: digest * ROW_PLACES + place in the batch
