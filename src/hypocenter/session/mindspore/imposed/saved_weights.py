"""`--save-initial-weights`: parameters and buffers as they are when a model first runs in training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from hypocenter.compare.weights.checkpoint import Tensor
from hypocenter.compare.weights.writer import write_file
from hypocenter.record.layout import INITIAL_WEIGHTS_FILE
from hypocenter.record.weights_file import About
from hypocenter.session.imposed.refuse import ImposeError
from hypocenter.session.mindspore.imposed.held import buffers_of, heads_of, held_by
from hypocenter.session.mindspore.imposed.tensors import copied
from hypocenter.tap.mindspore.names import NameMap

OPTION = "--save-initial-weights"


class SavedWeights:
    """Writes this rank's file; again, with more in it, when another model runs before the first update.

    Args:
        folder: of this rank.
        told: a line for run.json.
    """

    def __init__(self, folder: Callable[[], Path], names: NameMap, told: Callable[[str], None]) -> None:
        self._folder, self._names, self._told = folder, names, told
        self._held: dict[str, Tensor] = {}
        self._about = About()
        self._seen: set[int] = set()
        self._is_over = False

    def before_first_forward(self, root: Any) -> None:
        """Save the weights of a model: it is about to run for the first time.

        Raises:
            ImposeError: MindSpore splits its parameters over devices, or the file cannot be written.
        """
        if self._is_over:
            return
        fresh = [one for one in held_by(root, self._names, OPTION) if id(one.parameter) not in self._seen]
        if not fresh:
            return
        for one in fresh:
            self._seen.add(id(one.parameter))
            if getattr(one.parameter, "has_init", False):
                one.parameter.init_data()
            self._held[one.names[0]] = copied(one.parameter)
            self._about.tied.update(dict.fromkeys(one.names[1:], one.names[0]))
        for name, buffer in buffers_of(root):
            self._held.setdefault(name, copied(buffer))
        self._about.settings.update(heads_of(root))
        self._write()

    def before_update(self) -> None:
        """Save nothing more: the parameters are about to change."""
        self._is_over, self._held = True, {}

    def _write(self) -> None:
        path = self._folder() / INITIAL_WEIGHTS_FILE
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(self._held, path, {"hypocenter": msgspec.json.encode(self._about).decode()})
        except Exception as error:
            raise ImposeError(
                "the initial weights cannot be written", where=str(path), why=f"{type(error).__name__}: {error}"[:300]
            ) from error
        self._told(f"initial weights written, {len(self._held)} tensors")
