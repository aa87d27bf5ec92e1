"""The beginning of a text does not depend on where the text ends.

What it means
    A model that predicts the next token is trained on whole texts, and generates with what is there so far. So without
    its last third a text must give the outputs that its beginning gave. If it does not, something divides a text by its
    length: heads that are split by a reshape without the transpose, positions that are counted from the end, a mean
    over as many places as there are.

How it is decided
    Asked where the loss asks for the next token of an input, later tokens do not matter, and nor do other samples. All
    that is as long as the text is cut, and the outputs for what is left must stay. A model that refuses is not asked.

What to do
    Look at how the named module takes its input apart: samples, places and heads are three dimensions.

When it is wrong
    Where a model never sees a text of another length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from hypocenter.relations.facts import CannotTell, Facts, shift_of
from hypocenter.relations.masks import but_padding
from hypocenter.relations.parts import Places
from hypocenter.relations.relation import Trial, relation
from hypocenter.relations.subject import Subject
from hypocenter.relations.tokens import targets_of

_LEAST = 6  # places of a text


@relation("beginning", "HC242", order=6, needs=("future", "samples"))
def ask(subject: Subject, facts: Facts) -> Iterator[Trial]:
    """Yield a trial that cuts the last third of all samples off; the outputs for what is left must stay."""
    for each in subject.of_model:
        targets = targets_of(each, facts)
        if targets is None or shift_of(each.tensor, targets) != 1 or each.tensor.shape[1] < _LEAST:
            continue
        n, length = each.tensor.shape
        if subject.has_of_size(length) or n == length:
            raise CannotTell("how a model is told the length of its texts is not known")
        cut = 2 * length // 3
        cuts = _Cuts(n, {length: cut}), _Cuts(n, {length: cut, length + 1: cut + 1})
        pairs = [(given, cuts[not given.is_of_model].given(given.tensor)) for given in subject.given]
        stays = (but_padding(each, targets, subject) >= 0).cpu()
        stays[:, cut:] = False
        yield Trial(
            changed={given.place: new for given, new in pairs if new.shape != given.tensor.shape},
            parts=Places(stays), aligns=cuts[0].aligned, what="the last third of each text cut off",
            whom="the outputs for what is left", keys=frozenset({facts.logits}),
        )  # fmt: skip
        return
    raise CannotTell("the loss does not ask for the next token of an input")


@dataclass(frozen=True, slots=True)
class _Cuts:
    """How tensors get shorter.

    Attributes:
        n: samples.
        sizes: of a dimension, before and after.
    """

    n: int
    sizes: Mapping[int, int]

    def given(self, tensor: Tensor) -> Tensor:
        """Return what is given in its place, of as many dimensions."""
        cut = self.of(tensor)
        return cut if cut.dim() == tensor.dim() else cut.flatten(0, 1)

    def of(self, tensor: Tensor) -> Tensor:
        """Return a view of the beginning along each dimension of these sizes; of samples in a row, that of each."""
        if tensor.dim() and tensor.shape[0] % self.n == 0 and tensor.shape[0] // self.n in self.sizes:
            return self.of(tensor.unflatten(0, (self.n, -1)))
        for dim, size in enumerate(tensor.shape):
            if size in self.sizes:
                tensor = tensor.narrow(dim, 0, self.sizes[size])
        return tensor

    def aligned(self, old: Tensor, new: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the old one, and the new one with the old one's end; None if it is not the shorter of them."""
        whole = old.clone()
        there = self.of(whole)
        if there.numel() != new.numel() or old.dim() != new.dim():
            return None
        there.copy_(new.reshape(there.shape))
        return old, whole
