"""How much padding there is does not matter, where the model is given no mask.

What it means
    Tokens are padded, and nothing tells the model where. Their padding is made longer. Outputs at real places, and
    outputs of whole samples, must stay. If they do not, what a text gives depends on how long the others of its batch
    are.

How it is decided
    Padding is the token that the model's config, or the `padding_idx` of an embedding, names, where it stands at one
    edge of samples only, and not as often in all of them. A model that finds it by itself keeps its outputs.

What to do
    Give the model the mask that the tokenizer makes (`attention_mask`).

When it is wrong
    A model that takes no mask at all is a note; so is a convolution or a pooling that reaches over the edge.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from hypocenter.relations.facts import CannotTell, Facts
from hypocenter.relations.masks import padding_token
from hypocenter.relations.parts import PlacesOrRows
from hypocenter.relations.relation import Trial, relation
from hypocenter.relations.subject import Subject
from hypocenter.tap.names import unwrap


@relation("unmasked", "HC243", order=4, exceptions=("Conv", "GroupNorm", "InstanceNorm", "BatchNorm", "Pool"))
def ask(subject: Subject, facts: Facts) -> Iterator[Trial]:
    """Yield, for tokens that are padded without a mask, a trial with longer padding; outputs at real places stay."""
    is_asked = False
    for tokens in (e for e in subject.of_model if e.tensor.dim() == 2):
        (place, _), (n, length) = tokens.place, tokens.tensor.shape
        called = subject.module_at(place)
        beside = (e for e in subject.of_model if e is not tokens and e.place[0] == place and length in e.tensor.shape)
        if called is None or n != facts.n_rows or n == length or next(beside, None) is not None:
            continue
        token = padding_token(module := unwrap(called), tokens.tensor)
        if token is None or subject.has_of_size(length):
            continue
        is_asked, padded = True, tokens.tensor == token
        is_at_end = bool(padded[:, -1].any())
        room = getattr(getattr(module, "config", None), "max_position_embeddings", None)
        more = max(1, min(length // 2, room - length) if isinstance(room, int) else length // 4)
        takes_mask = any("mask" in name for name in inspect.signature(module.forward).parameters)
        yield Trial(
            changed={tokens.place: functional.pad(tokens.tensor, (0, more) if is_at_end else (more, 0), value=token)},
            parts=PlacesOrRows(~padded.cpu()), aligns=_Longer(length, more, is_at_end).aligned,
            what=f"padding of {tokens.name} (token {token}) made longer by {more}", whom="outputs that are no padding",
            exception="" if takes_mask else "the model takes no mask",
        )  # fmt: skip
    if not is_asked:
        raise CannotTell("no tokens are known to be padded without a mask")


@dataclass(frozen=True, slots=True)
class _Longer:
    """A dimension that has become longer, at its end or its beginning."""

    length: int
    more: int
    is_at_end: bool

    def aligned(self, old: Tensor, new: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the old one, and the new one without what was added; None if they differ otherwise."""
        for dim, size in enumerate(old.shape if old.dim() == new.dim() else ()):
            if size == self.length and new.shape[dim] == size + self.more:
                new = new.narrow(dim, 0 if self.is_at_end else self.more, size)
        return (old, new) if old.shape == new.shape else None
