"""Level `tensors`: what an optimizer's rule gets and what it makes of it, so that the step can be done again.

`tensors/step-000012/update-0.safetensors` holds of the first optimizer that steps, for each parameter: `value|NAME`,
`grad|NAME` (unscaled and clipped, as the rule gets it) and `state|exp_avg|NAME` before, and `after|NAME` and
`after-state|exp_avg|NAME` after it. Under `update` in the metadata, as JSON: class of the optimizer, options of each
group at this step, and names. Where a framework trains copies of the parameters in float32, these are what is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.optim import Optimizer

from hypocenter.config import Config
from hypocenter.session.facts.plain import NOT_PLAIN, plain
from hypocenter.session.trained import Trained, trained
from hypocenter.tap.names import NameMap
from hypocenter.tap.wanted import is_wanted

_SHOWN_STATE = 8  # tensors of state per parameter; more is an optimizer whose rule is not known


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
        self._held: dict[str, Tensor] | None = None
        self._step = self._number = -1

    def before(self, optimizer: Optimizer, step: int) -> None:
        """The rule is about to be applied: gradients are final."""
        self._held = None
        self._number = self._number + 1 if step == self._step else 0
        self._step = step
        wanted = self._wanted(optimizer)
        n_bytes = sum(3 * one.tensor.numel() * one.tensor.element_size() for one in wanted)
        if 2 * n_bytes > self._left_bytes:
            self._warn("parameters and state at updates are no longer kept: the size budget is used up")
            self._left_bytes = 0
            return
        held: dict[str, Tensor] = {}
        with torch.no_grad():
            for one in wanted:
                self._put(held, "value", one, one.tensor)
                if one.tensor.grad is not None:
                    self._put(held, "grad", one, one.tensor.grad)
                self._put_state(held, "state", one, optimizer)
        self._held = held

    def after(self, optimizer: Optimizer) -> None:
        """It has been applied."""
        held, self._held = self._held, None
        if not held:
            return
        with torch.no_grad():
            for one in self._wanted(optimizer):
                self._put(held, "after", one, one.tensor)
                self._put_state(held, "after-state", one, optimizer)
        self._left_bytes -= sum(tensor.nbytes for tensor in held.values())
        self._write(held, self._about(optimizer))

    def _wanted(self, optimizer: Optimizer) -> list[Trained]:
        return [one for one in trained(optimizer, self._names) if self._is_wanted(one.name)]

    def _is_wanted(self, name: str) -> bool:
        return is_wanted((name, name.rpartition(".")[0]), self._config)

    def _put(self, held: dict[str, Tensor], what: str, one: Trained, values: Tensor) -> None:
        here = _here(values)
        if here is None:
            return
        for name, part in one.parts(self._names, here):
            if part.numel():
                held[f"{what}|{name}"] = torch.empty(part.shape, dtype=part.dtype).copy_(part)

    def _put_state(self, held: dict[str, Tensor], what: str, one: Trained, optimizer: Optimizer) -> None:
        state = optimizer.state.get(one.tensor)  # .get: a defaultdict must not grow
        if not isinstance(state, Mapping) or len(state) > _SHOWN_STATE:
            return
        for key, value in state.items():
            if isinstance(value, Tensor) and value.numel() == one.tensor.numel() != 1:
                self._put(held, f"{what}|{key}", one, value)
            elif isinstance(value, Tensor) and value.numel() == 1:
                for name, _ in one.parts(self._names, one.tensor.detach()):
                    held[f"{what}|{key}|{name}"] = value.detach().to("cpu", copy=True).reshape(())
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                held[f"{what}|{key}|{one.name}"] = torch.tensor(float(value), dtype=torch.float64)

    def _about(self, optimizer: Optimizer) -> dict[str, Any]:
        kind = type(optimizer)
        bases = [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__ if base is not object]
        groups: list[dict[str, Any]] = []
        members = trained(optimizer, self._names)
        for index, group in enumerate(optimizer.param_groups):
            options = {str(key): found for key, found in _options(group)}
            names = [name for one in members if one.group == index for name in _names(one, self._names)]
            groups.append({"options": options, "parameters": names})
        scale = getattr(optimizer, "grad_scale", None)  # of fused optimizers, which take it out themselves
        skips = getattr(optimizer, "found_inf", None)
        return {
            "kind": kind.__name__,
            "bases": bases,
            "groups": groups,
            "grad_scale": float(scale) if isinstance(scale, Tensor) else 1.0,
            "is_skipped": bool(skips.item()) if isinstance(skips, Tensor) else False,
        }

    def _write(self, held: dict[str, Tensor], about: dict[str, Any]) -> None:
        folder = self._folder() / "tensors" / f"step-{self._step:06d}"
        path = folder / f"update-{self._number}.safetensors"
        try:
            from safetensors.torch import save_file  # the training process must not need it at other levels

            folder.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            save_file(held, part, metadata={"update": msgspec.json.encode(about).decode(), "step": str(self._step)})
            part.replace(path)  # a kill leaves a whole file or none
        except Exception as error:
            self._warn(f"what the optimizer did cannot be written: {error!r}")


def _options(group: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in group.items():
        if key == "params" or type(key) is not str:
            continue
        if isinstance(value, Tensor) and value.numel() == 1:
            yield key, float(value)
        elif (kept := plain(value)) is not NOT_PLAIN:
            yield key, kept


def _names(one: Trained, names: NameMap) -> list[str]:
    return [name for name, _ in one.parts(names, one.tensor.detach().reshape(-1))]


def _here(tensor: Tensor) -> Tensor | None:
    """The dense values on this rank; None where there are none."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()  # type: ignore[operator]
    if tensor.is_meta:
        return None
    tensor = tensor.detach()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()
