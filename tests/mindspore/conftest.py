"""Tests of what runs inside MindSpore: for a Python that has it (./scripts/test makes one); others pass them by."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("mindspore") else ["*"]


@pytest.fixture(autouse=True)
def in_step(request: pytest.FixtureRequest) -> None:
    """Operators are executed as they are called: on two cores MindSpore's queues wait for each other.

    A test that is marked `queues` has them, as a user's program has, and so has each program that a test starts.
    """
    import mindspore as ms

    ms.set_context(pynative_synchronize=request.node.get_closest_marker("queues") is None)
