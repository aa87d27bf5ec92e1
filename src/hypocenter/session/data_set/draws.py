"""The same random numbers for each reading. Only in a child: it sets the generators of the whole process."""

from __future__ import annotations

import random
import sys

import torch

A, OTHERS = 20231, (7, 1009, 3301, 90001, 5, 77)  # seeds


def set_draws(seed: int) -> None:
    """Let what is drawn from the global generators from here on depend on this seed alone."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)
