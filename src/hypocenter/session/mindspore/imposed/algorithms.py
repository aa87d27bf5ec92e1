"""`--deterministic`: MindSpore takes the deterministic form of every operator that has one (a switch of Ascend's).

The switch itself is set at the import of mindspore, or with the seeds (hypocenter.deterministic); here are variables
that are read later than at the start of the process: reductions over cards (HCCL), launching one operator at a time.
"""

from __future__ import annotations

import os
from typing import Any

from hypocenter import deterministic
from hypocenter.config import Config
from hypocenter.session.imposed.wanted_seed import wanted_seed


def begin(config: Config, warn: Any) -> dict[str, str]:
    """Set the environment variables that are not set, if `--deterministic` was given."""
    if not config.deterministic:
        return {}
    os.environ.update(deterministic.environment(os.environ, wanted_seed(config) or 0))
    return {"algorithms": "deterministic algorithms"}
