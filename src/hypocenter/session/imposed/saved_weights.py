"""`--save-initial-weights`: parameters and buffers as they are when a model is first called in training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn

from hypocenter.record.layout import INITIAL_WEIGHTS_FILE
from hypocenter.record.weights_file import About, Part
from hypocenter.session.imposed.laid_out import LaidOut, buffers_of, heads_of
from hypocenter.session.imposed.refuse import ImposeError
from hypocenter.tap.names import NameMap

OPTION = "--save-initial-weights"


class SavedWeights:
    """Writes this rank's file; again, with more in it, when another model is called before the first update.

    Args:
        folder: of this rank.
        told: a line for run.json.
    """

    def __init__(
        self, folder: Callable[[], Path], names: NameMap, laid_out: LaidOut, told: Callable[[str], None]
    ) -> None:
        self._folder, self._names, self._laid_out, self._told = folder, names, laid_out, told
        self._held: dict[str, Tensor] = {}
        self._about = About()
        self._seen: set[int] = set()
        self._is_over = False

    def before_forward(self, module: nn.Module) -> None:
        """Save the weights of this module's model: it is about to be called in training.

        Raises:
            ImposeError: a parameter lies in a way that is not known, or the file cannot be written.
        """
        if self._is_over:
            return
        root = self._laid_out.root_of(module)
        fresh = [one for one in self._laid_out.parameters(root, OPTION) if id(one.parameter) not in self._seen]
        if not fresh:
            return
        about = self._about
        for one in fresh:
            self._seen.add(id(one.parameter))
            self._held[one.names[0]] = _copy(one.local)
            about.tied.update(dict.fromkeys(one.names[1:], one.names[0]))
            if one.offset is not None:
                about.parts[one.names[0]] = Part(shape=one.shape, offset=one.offset)
        for name, buffer in buffers_of(root, self._names).items():
            self._held.setdefault(name, _copy(buffer))
        about.settings.update(heads_of(root))
        self._write()

    def before_update(self) -> None:
        """Save nothing more: the parameters are about to change."""
        self._is_over, self._held = True, {}

    def _write(self) -> None:
        path = self._folder() / INITIAL_WEIGHTS_FILE
        try:
            from safetensors.torch import save_file

            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            save_file(self._held, part, metadata={"hypocenter": msgspec.json.encode(self._about).decode()})
            part.replace(path)
        except Exception as error:
            raise ImposeError(
                "the initial weights cannot be written", where=str(path), why=f"{type(error).__name__}: {error}"[:300]
            ) from error
        self._told(f"initial weights written, {len(self._held)} tensors")


def _copy(tensor: Tensor) -> Tensor:
    with torch.no_grad():
        here = tensor.detach()
        return torch.empty(here.shape, dtype=here.dtype, device="cpu").copy_(here)
