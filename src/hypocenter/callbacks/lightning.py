"""`Trainer(callbacks=[hypocenter.LightningCallback(level="modules")])`."""

from __future__ import annotations

import importlib.util
from typing import Any

from hypocenter.session.handle import Handle
from hypocenter.session.start import watch

if importlib.util.find_spec("lightning") is not None:
    from lightning.pytorch.callbacks import Callback
else:
    from pytorch_lightning.callbacks import Callback  # type: ignore[no-redef]


class LightningCallback(Callback):  # pyright: ignore[reportGeneralTypeIssues, reportUntypedBaseClass]
    """Watches a Lightning Trainer from the start of `fit` to its end, or to the exception that ends it.

    Args:
        options: fields of `hypocenter.config.Config`; `out` defaults to a folder in the Trainer's root directory.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = options
        self.handle: Handle | None = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Start watching; names are those of the LightningModule."""
        options = {"out": f"{trainer.default_root_dir}/hypocenter", **self._options}
        self.handle = watch(pl_module, None, None, **options)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Write what is left of the recording."""
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write what is left after training has failed, with a look at a loss that was not used yet."""
        self._close()

    def _close(self) -> None:
        if self.handle is not None:
            self.handle.close()
