"""What each label of a cross-entropy weighs in a loss, heard in a replay.

MindSpore's `cross_entropy` picks the log-probability of each label with one gather; what its backward hands to that
gather is, label by label, the weight that the label has in the loss: 0 for one that is ignored.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np
from mindspore.utils import MsDispatchMode  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray

from hypocenter.summary.reducers.mindspore_values import on_host

_PICKS, _PICKS_BACKWARD = "GatherD", "GatherDGradV2"


class LabelWeights(MsDispatchMode):  # pyright: ignore[reportUntypedBaseClass]
    """Measure what each label weighs in the loss. Entered around a replay."""

    def __init__(self) -> None:
        super().__init__()
        self._n_picked = 0
        self._heard: list[NDArray[Any]] = []

    @property
    def weights(self) -> NDArray[Any] | None:
        """The weights, one for each label; None without a cross-entropy, or with several."""
        return self._heard[0] if self._n_picked == len(self._heard) == 1 else None

    def __ms_dispatch__(self, func: Any, args: Any, kwargs: Any = None) -> Any:
        """Run an operator in its place, and note the weights that a cross-entropy gives back."""
        if func.name == _PICKS and _is_one_of_each(args[2]):
            self._n_picked += 1
        elif func.name == _PICKS_BACKWARD and _is_one_of_each(args[2]):
            self._heard.append(np.asarray(on_host(args[3]), np.float64).reshape(-1))
        return func(*args)


def _is_one_of_each(index: Any) -> bool:
    return isinstance(index, ms.Tensor) and index.ndim >= 2 and index.shape[-1] == 1
