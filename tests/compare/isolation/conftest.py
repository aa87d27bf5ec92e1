"""Lets tests of this folder import the program beside them, and gives them its recordings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def good(tmp_path_factory):
    """The baseline's recording."""
    from six_layers import build, record

    torch.set_num_threads(1)
    return record(tmp_path_factory.mktemp("six-layers") / "good", build())
