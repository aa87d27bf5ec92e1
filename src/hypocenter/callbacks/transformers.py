"""`Trainer(callbacks=[hypocenter.TransformersCallback(level="modules")])`."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from hypocenter.session.handle import Handle
from hypocenter.session.start import watch


class TransformersCallback(TrainerCallback):
    """Watches a Trainer from `train()` to its end.

    Args:
        options: fields of `hypocenter.config.Config`; `out` defaults to a folder in the Trainer's `output_dir`.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self.handle: Handle | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Start watching the model and its optimizer."""
        options = {"out": f"{args.output_dir}/hypocenter", **self._options}
        self.handle = watch(model, kwargs.get("optimizer"), **options)
        if getattr(args, "logging_nan_inf_filter", False):
            self.handle.note(
                "logging_nan_inf_filter hides a NaN loss from the Trainer's log; Hypocenter reads the loss itself"
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write what is left of the recording."""
        if self.handle is not None:
            self.handle.close()
