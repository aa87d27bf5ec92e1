"""A server on a port of its own, for the tests of this room; its helpers are a plain module beside them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from asking import Asking

from hypocenter.view.serving import Server


@pytest.fixture
def serve() -> Iterator[Callable[..., Asking]]:
    ends: list[Callable[[], None]] = []

    def started(*paths: Path, **options: Any) -> Asking:
        server = Server(paths, port=0, **options)
        ends.append(server.start())
        return Asking(server)

    yield started
    for end in ends:
        end()
