"""A step of torch done again without its loss scale: is it finite then?"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hypocenter.config import Config
from hypocenter.replay import alone
from hypocenter.replay.engine import Replayer, ReplayImpossible
from hypocenter.session.scale_watch import Answer
from hypocenter.tap.names import NameMap
from hypocenter.tap.tape import Microbatch

LARGEST_SEED = 2.0**24  # 1 / scale must not become 0 in float16, whose smallest number is 2^-24


class AtScale1:
    """Finds out by replays whether a step would have been finite without its loss scale."""

    def __init__(self, config: Config, names: NameMap, replayer: Replayer) -> None:
        self._config, self._names, self._replayer = config, names, replayer

    def __call__(self, scale: float, microbatches: Sequence[Microbatch]) -> Answer:
        """Replay the step with the loss scale taken out of what backward starts from, and say if it is finite then."""
        half = any(v.dtype == torch.float16 for m in microbatches for v in m.values)
        if not self._config.replay or not microbatches or (half and scale > LARGEST_SEED):
            return "cannot-tell"
        parameters = [p for _, p in self._names.parameters()]
        sums: list[torch.Tensor | None] = [None] * len(parameters)
        try:
            for microbatch in microbatches:
                replayed = self._replayer.run(microbatch, parameters, seed_scale=1.0 / scale)
                if not replayed.finite:
                    return "not-finite"
                if len(microbatches) > 1:
                    sums = [
                        g if s is None else s if g is None else s + g for s, g in zip(sums, replayed.grads, strict=True)
                    ]
        except ReplayImpossible:
            return "needs-all" if alone.is_one_of_many() else "cannot-tell"
        except Exception:  # the user's own code runs here: anything may come out of it
            return "cannot-tell"
        return "finite" if all(bool(torch.isfinite(s).all()) for s in sums if s is not None) else "not-finite"
