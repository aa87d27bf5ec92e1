"""Level `tensors`: what an optimizer's rule gets and what it makes of it, so that the step can be done again.

The files are those of session.update_tensors: `tensors/step-000012/update-0.safetensors` holds of the first optimizer
that steps, for each parameter, `value|NAME`, `grad|NAME` and `state|exp_avg|NAME` before, and `after|NAME` and
`after-state|exp_avg|NAME` after it. Gradients are as the optimizer gets them; where it divides them by a loss scale
itself, that is `grad_scale`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hypocenter.config import Config
from hypocenter.session.mindspore.tensor_file import write_bits
from hypocenter.tap.mindspore.names import NameMap
from hypocenter.tap.mindspore.optimizers import bases_of, groups_of, loss_scale_of, members, state_of
from hypocenter.tap.mindspore.tensors import Bits, bits_of
from hypocenter.tap.wanted import is_wanted


class UpdateTensors:
    """Copies to the host before and after the rule; writes one file per optimizer and step.

    Args:
        folder: of this rank.
        budget_bytes: nothing beyond it is kept in one run.
    """

    def __init__(
        self, config: Config, names: NameMap, folder: Callable[[], Path], warn: Callable[[str], None], budget_bytes: int
    ) -> None:
        self._config, self._names, self._folder, self._warn = config, names, folder, warn
        self._left_bytes = budget_bytes
        self._held: dict[str, Bits] = {}
        self._about: dict[str, Any] = {}
        self._step = self._number = -1

    def before(self, optimizer: Any, gradients: Sequence[tuple[Any, Any]], step: int) -> None:
        """The rule is about to be applied: gradients are final."""
        self._held = {}
        self._number = self._number + 1 if step == self._step else 0
        self._step = step
        n_bytes = sum(6 * int(parameter.nbytes) for _, parameter in self._wanted(optimizer))  # with two of state
        if n_bytes > self._left_bytes:
            self._warn("parameters and state at updates are no longer kept: the size budget is used up")
            self._left_bytes = 0
            return
        self._about = self._told(optimizer)
        of_gradient = {id(parameter): gradient for parameter, gradient in gradients}
        self._hold("value", "state", optimizer)
        for name, parameter in self._wanted(optimizer):
            if of_gradient.get(id(parameter)) is not None:
                self._held[f"grad|{name}"] = bits_of(of_gradient[id(parameter)])

    def after(self, optimizer: Any) -> None:
        """It has been applied."""
        if not self._held:
            return
        self._hold("after", "after-state", optimizer)
        held, self._held = self._held, {}
        self._left_bytes -= sum(bits.array.nbytes for bits in held.values())
        folder = self._folder() / "tensors" / f"step-{self._step:06d}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            metadata = {"update": msgspec.json.encode(self._about).decode(), "step": str(self._step)}
            write_bits(held, folder / f"update-{self._number}.safetensors", metadata)
        except Exception as error:
            self._warn(f"what the optimizer did cannot be written: {error!r}")

    def _wanted(self, optimizer: Any) -> Iterator[tuple[str, Any]]:
        for parameter in members(optimizer):
            name = self._names.label(parameter)
            if is_wanted((name, name.rpartition(".")[0]), self._config):
                yield name, parameter

    def _hold(self, values: str, states: str, optimizer: Any) -> None:
        state = state_of(optimizer)
        for name, parameter in self._wanted(optimizer):
            if not parameter.size:
                continue
            self._held[f"{values}|{name}"] = bits_of(parameter)
            for word, tensor in state.get(id(parameter), ()):
                bits = bits_of(tensor)
                if word == "step":  # a counter has no dimension
                    bits = Bits(dtype=bits.dtype, array=bits.array.reshape(()))
                self._held[f"{states}|{word}|{name}"] = bits

    def _told(self, optimizer: Any) -> dict[str, Any]:
        groups = [
            {"options": options, "parameters": [self._names.label(parameter) for parameter in parameters]}
            for options, parameters in groups_of(optimizer)
        ]
        return {
            "kind": type(optimizer).__name__,
            "bases": bases_of(optimizer),
            "groups": groups,
            "grad_scale": loss_scale_of(optimizer),
            "is_skipped": False,
        }
