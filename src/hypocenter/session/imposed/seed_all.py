"""`hypocenter.seed_all`: what `run --deterministic` imposes, as one call at the top of a training script."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from hypocenter import deterministic as imposing
from hypocenter.config import Config, checked_seed
from hypocenter.session.imposed.later import when_imported

_OF_FRAMEWORKS = {
    "torch": "hypocenter.session.imposed.seeded_torch",
    "mindspore": "hypocenter.session.mindspore.imposed.seeded_mindspore",
}
"""Framework -> the module whose `begin(config, warn)` does it there."""


def seed_all(seed: int = imposing.SEED, *, deterministic: bool = True, dropout: bool = True) -> None:
    """Seed Python, NumPy, torch and MindSpore, and have them take deterministic forms.

    A framework that is imported later is seeded then. What a process reads only when it starts (PYTHONHASHSEED;
    CUBLAS_WORKSPACE_CONFIG once CUDA is up) is set for its children: `hypocenter run --deterministic` sets it for the
    program itself.

    Args:
        seed: 0 to 2**32 - 1; give every rank the same.
        deterministic: False leaves the algorithms as they are, and sets the seeds only.
        dropout: False switches dropout off, everywhere.

    Raises:
        ConfigError: a seed that NumPy cannot take.
    """
    config = Config(seed=checked_seed(seed, "seed_all"), deterministic=deterministic, no_dropout=not dropout)
    if deterministic:
        os.environ.update(imposing.environment(os.environ, seed))
    import_module("numpy")  # its generator is seeded, also where the program imports it later
    imposing.seed_random(seed)
    imposing.seed_numpy(seed)
    for framework, half in _OF_FRAMEWORKS.items():
        when_imported(framework, lambda half=half: import_module(half).begin(config, _say))


def _say(text: str) -> None:
    print(f"hypocenter: {text}", file=sys.stderr)
