"""What stands where there is only padding does not matter.

What it means
    The content under a padding mask is replaced. Outputs at real places, outputs of whole samples and the loss must
    stay. If they do not, a result depends on how long the other samples of its batch happen to be.

How it is decided
    A mask is an input of zeros and ones, named so or with the same content everywhere that it covers, which covers the
    beginnings or ends of samples. The content under it is replaced by other content of the batch; of tokens
    only what embeddings look up, for a model may tell padding from the tokens themselves.

What to do
    Hand the mask on to the named module; give padding the label that the loss ignores.

When it is wrong
    Where a convolution, a pooling or statistics over places reach over the edge of a sample on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hypocenter.relations.facts import CannotTell, Facts
from hypocenter.relations.masks import covered, is_mask, padded_places
from hypocenter.relations.parts import PlacesOrRows
from hypocenter.relations.relation import Trial, relation
from hypocenter.relations.subject import Subject


@relation("padding", "HC243", order=4, exceptions=("Conv", "GroupNorm", "InstanceNorm", "BatchNorm", "Pool"))
def ask(subject: Subject, facts: Facts) -> Iterator[Trial]:
    """Yield, for each mask, a trial that replaces what lies under it; outputs at real places must stay."""
    n = facts.n_rows
    contents = [e for e in subject.of_model if e.tensor.dim() > 1 and e.tensor.shape[0] == n and not is_mask(e)]
    labels = {label.place for label in facts.labels}
    contents = [e for e in contents if e.place not in labels and "position" not in e.name and "type" not in e.name]
    is_asked = False
    for mask in (e for e in subject.of_model if n and is_mask(e) and e.tensor.shape[0] == n):
        content = covered(mask, contents)
        if content is None:
            continue
        padded = padded_places(mask, content.tensor)
        if padded is None:
            continue
        new = _other(content.tensor, padded)
        if torch.equal(new, content.tensor):
            continue
        is_asked = True
        real, is_text = ~padded.cpu(), not content.tensor.is_floating_point()
        lengths = frozenset(
            int(e.tensor.shape[1]) for e in (*facts.labels, *subject.of_model)
            if is_text and e.tensor.dim() == 2 and e.tensor.shape[0] == n and e.tensor.shape[1] != real.shape[1]
        )  # fmt: skip
        yield Trial(
            changed={content.place: new}, parts=PlacesOrRows(real, lengths), is_embedded=is_text,
            what=f"content of {content.name} under {mask.name} replaced", whom="outputs that are no padding",
        )  # fmt: skip
    if not is_asked:
        raise CannotTell("there is no padding under a mask")


def _other(content: Tensor, padded: Tensor) -> Tensor:
    """Return the content with its padding replaced by real content from the same batch."""
    real = content[~padded]
    new = content.clone()
    n = int(padded.sum())
    if len(real):
        new[padded] = real[(torch.arange(n, device=real.device) * 7 + 3) % len(real)]
    return new
