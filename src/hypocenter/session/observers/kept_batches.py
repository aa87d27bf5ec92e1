"""`--save-batches N`: the integer tensors of the batches of the first N steps, whole, and what the loss asks for.

What the loss asks for is read off the gradient of the logits: of cross-entropy it is softmax minus one-hot, so at each
place only the token that is the target there has a negative one. So it shows which token is trained at which place,
whoever shifts, masks or skips labels: the data, the collator, the model, the loss. Places that the loss does not look
at have a gradient of zero, and -1 here.

`batches/step-000000/mb-0.safetensors` of a rank holds `model|NAME` and `loss|[n]` as they were given, and `target`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from hypocenter.config import Config
from hypocenter.record.layout import batches_directory
from hypocenter.session.batch import first_call, given_to_loss_code, given_to_model
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.tap.tree import tensors

BUDGET_BYTES = 1 << 30  # of one rank's files
MOST_MICROBATCHES = 64  # of one step


class KeptBatches(Observer):
    """Keeps the integer tensors of the first batches, if that was asked for; afterwards its hook is gone."""

    @classmethod
    def is_wanted(cls, config: Config) -> bool:
        """Return whether batches of some steps are to be kept."""
        return config.save_batches > 0

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._n_steps = context.config.save_batches
        self._left_bytes = BUDGET_BYTES
        self._logits: Tensor | None = None
        self._n_events = 0  # of the tape, that belong to earlier micro-batches
        self._kept: dict[int, dict[str, Tensor]] = {}
        self._hook: Any = None
        self._vocabularies: tuple[int, frozenset[int]] = (-1, frozenset())

    def attach(self) -> Callable[[], None]:
        """Set the hook, if batches are to be kept; returns the undo."""
        if self._n_steps:
            self._hook = nn.modules.module.register_module_forward_hook(self._look_for_logits)
        return self._let_go

    def _let_go(self) -> None:
        self._logits = None
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _look_for_logits(self, module: nn.Module, args: Any, output: Any) -> None:
        """Remember the last output of a micro-batch that is as wide as the vocabulary."""
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or not module.training:
            return
        try:
            wide = [t for _, t in tensors(output) if t.requires_grad and t.ndim > 1 and t.shape[-1] in self._widths()]
            self._logits = wide[0] if wide else self._logits
        except Exception:  # an unusual output must not break the user's forward
            self._logits = None

    def _widths(self) -> frozenset[int]:
        roots = self.context.names.roots()
        if len(roots) != self._vocabularies[0]:
            found = {m.num_embeddings for root in roots for m in root.modules() if isinstance(m, nn.Embedding)}
            self._vocabularies = len(roots), frozenset(found)
        return self._vocabularies[1]

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        """Copy what a micro-batch was made of, as its forward is over."""
        if self._hook is None:
            return
        events, logits = self.context.tape.events, self._logits
        start = self._n_events if self._n_events <= len(events) else 0
        self._n_events, self._logits = len(events), None
        first = first_call(self.context.tape, start, roots)
        clock = self.context.clock
        if first is None or clock.microbatch >= MOST_MICROBATCHES:
            return
        given = [
            (f"model|{name}", whole) for name, whole, _ in given_to_model(events[first], is_full=False)
            if not whole.is_floating_point() and not whole.is_complex()
        ]  # fmt: skip
        known = {id(whole) for _, whole in given}
        given += [(f"loss|{name[4:]}", whole) for name, whole, _ in given_to_loss_code(events[first + 1 :], known)]
        with torch.no_grad(), _disable_current_modes():
            kept = {name: whole.detach().to("cpu", copy=True).contiguous() for name, whole in given}
        self._kept[clock.microbatch] = kept
        if logits is not None and logits.requires_grad:
            logits.register_hook(lambda gradient: _keep_targets(gradient, kept))

    def before_update(self, update: Update) -> None:
        """Write what was kept of the step, which is complete."""
        if self._hook is None:
            return
        kept, self._kept, self._n_events = self._kept, {}, 0
        if update.step >= self._n_steps:
            self._let_go()
            return
        for microbatch, found in kept.items():
            self._write(update.step, microbatch, found)

    def _write(self, step: int, microbatch: int, found: Mapping[str, Tensor]) -> None:
        directory, n_bytes = self.context.directory, sum(tensor.nbytes for tensor in found.values())
        if directory is None or not found:
            return
        if n_bytes > self._left_bytes:
            self.context.warn("batches are no longer kept: the size budget is used up")
            self._let_go()
            return
        self._left_bytes -= n_bytes
        from safetensors.torch import save_file  # the training process must not need it otherwise

        folder = batches_directory(directory, self.context.rank()[0]) / f"step-{step:06d}"
        path = folder / f"mb-{microbatch}.safetensors"
        folder.mkdir(parents=True, exist_ok=True)
        part: Path = path.with_suffix(".part")
        save_file(dict(found), part)
        part.replace(path)  # a kill leaves a whole file or none


def _keep_targets(gradient: Tensor, kept: dict[str, Tensor]) -> None:
    """Keep the token with a negative gradient at each place, or -1 where there is none."""
    try:
        with torch.no_grad(), _disable_current_modes():
            lowest, token = gradient.detach().min(dim=-1)
            kept["target"] = torch.where(lowest < 0, token, -1).to("cpu", copy=True).contiguous()
    except Exception:  # an unusual gradient must not break the user's backward
        kept.pop("target", None)
