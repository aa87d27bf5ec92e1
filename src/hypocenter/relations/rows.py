"""Other samples than those of the batch: some of them, or all of them twice."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from hypocenter.relations.evaluation import evaluation
from hypocenter.relations.facts import CannotTell, Facts
from hypocenter.relations.subject import Ran, Subject
from hypocenter.replay.batch_rows import Rows

ROUGH = 4e-3  # relative: what TF32 makes of batches of another size
_LEAST = 4  # samples: what is left is a batch, and not one sample


def whole_batch(subject: Subject, facts: Facts) -> int:
    """Return the number of samples.

    Raises:
        CannotTell: other samples may not come to the same, or it is not known which dimension is theirs.
    """
    n = facts.n_rows
    if n < _LEAST:
        raise CannotTell(f"there are fewer than {_LEAST} samples")
    if facts.may_be_second and not facts.is_certain:
        raise CannotTell("which dimension is the batch is not known for certain")
    if facts.relates_rows:
        raise CannotTell(f"{facts.relates_rows} may say which rows belong together")
    if facts.is_low:
        raise CannotTell("in this format batches of another size are rounded in another way")
    if any(n in each.tensor.shape[1:] for each in subject.given):
        raise CannotTell("another dimension has as many places as there are samples")
    if subject.has_of_size(n):
        raise CannotTell("the model is told of each sample in a list, or how many there are")
    return n


def evaluation_of_rows(subject: Subject, facts: Facts) -> Ran:
    """Return the forward of all samples in evaluation mode, to compare others with it.

    Raises:
        CannotTell: it draws random numbers: others for a batch of another size.
    """
    found = evaluation(subject, facts)
    if found.has_drawn:
        raise CannotTell("in evaluation it draws random numbers, others for a batch of another size")
    return found.ran


def chosen(rows: Rows) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor] | None]:
    """Return a function that makes an output for all samples comparable with one for the chosen rows."""
    n, n_new = rows.n, len(rows.kept)

    def aligned(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor] | None:
        if not old.dim() or not new.dim() or old.shape[0] % n or old.shape[0] == 0:
            return None
        if new.shape[0] * n != old.shape[0] * n_new or new.shape[1:] != old.shape[1:]:
            return None
        return old.reshape(n, -1).index_select(0, rows.kept.to(old.device)), new.reshape(n_new, -1)

    return aligned


def rows_of(n: int, kept: Tensor) -> Rows:
    """Describe a choice of `kept` rows out of `n`, also where code of the loss has flattened them."""
    return Rows(n=n, kept=kept, is_flat=True)
