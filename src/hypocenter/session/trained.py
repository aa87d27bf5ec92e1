"""What a torch optimizer updates, under the names of the user's parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.optim import Optimizer

from hypocenter.session.facts.plain import members
from hypocenter.tap.flat_parameters import is_flat, unfolded
from hypocenter.tap.names import NameMap

_MASTER = "main_param"  # Megatron-Core: on the model's parameter, the float32 copy that is trained


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One tensor of an optimizer's group.

    Attributes:
        name: the user's; its place in the groups when it belongs to no model that is known.
        tensor: what the optimizer updates: the parameter, or a copy of it in another format.
        parameter: the model's; None when it belongs to none.
    """

    name: str
    group: int
    tensor: Tensor
    parameter: Tensor | None

    def parts(self, names: NameMap, values: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield parts of values that lie as the tensor does, by name: a flat one of FSDP1 holds several parameters."""
        if not is_flat(self.tensor):
            yield self.name, values
            return
        for original, part in unfolded(self.tensor, values):
            yield (names.param_name(original) or self.name), part


def trained(optimizer: Optimizer, names: NameMap) -> Sequence[Trained]:
    """Return all tensors that an optimizer updates, group by group."""
    masters: dict[int, Tensor] = {}
    for _, parameter in names.parameters():
        master = members(parameter).get(_MASTER)
        if isinstance(master, Tensor):
            masters[id(master)] = parameter
    found: list[Trained] = []
    for index, group in enumerate(optimizer.param_groups):
        members_of_group: list[Tensor] = list(group["params"])
        for place, tensor in enumerate(members_of_group):
            owner = masters.get(id(tensor), tensor)
            name = names.param_name(owner)
            found.append(
                Trained(
                    name=name or f"param_groups[{index}].params[{place}]",
                    group=index,
                    tensor=tensor,
                    parameter=owner if name else None,
                )
            )
    return found
