"""`hypocenter.seed_all`: what `run --deterministic` imposes, as one call at the top of a training script."""

from __future__ import annotations

import sys

from hypocenter.config import Config, checked_seed
from hypocenter.deterministic import SEED, switch_mindspore
from hypocenter.session.imposed.algorithms import begin as impose_algorithms
from hypocenter.session.imposed.dropout import begin as impose_no_dropout
from hypocenter.session.imposed.entropy import begin as impose_seeds_of_generators
from hypocenter.session.imposed.seeds import set_all


def seed_all(seed: int = SEED, *, deterministic: bool = True, dropout: bool = True) -> None:
    """Seed Python, NumPy, torch and MindSpore, and have torch take deterministic forms.

    What a process reads only when it starts (PYTHONHASHSEED; CUBLAS_WORKSPACE_CONFIG once CUDA is up) is set for its
    children: `hypocenter run --deterministic` sets it for the program itself.

    Args:
        seed: 0 to 2**32 - 1; give every rank the same.
        deterministic: False leaves the algorithms as they are, and sets the seeds only.
        dropout: False switches dropout off, everywhere.

    Raises:
        ConfigError: a seed that NumPy cannot take.
    """
    config = Config(seed=checked_seed(seed, "seed_all"), deterministic=deterministic, no_dropout=not dropout)
    set_all(seed)
    switch_mindspore(seed, deterministic=deterministic)
    for impose in (impose_algorithms, impose_seeds_of_generators, impose_no_dropout):
        impose(config, _say)


def _say(text: str) -> None:
    print(f"hypocenter: {text}", file=sys.stderr)
