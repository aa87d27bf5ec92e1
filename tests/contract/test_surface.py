"""The public surface is what the frozen list says; changing it means changing that list in the same commit."""

from __future__ import annotations

import difflib
import importlib.util
from pathlib import Path


def test_surface_is_the_frozen_one() -> None:
    spec = importlib.util.spec_from_file_location("surface", Path(__file__).with_name("surface.py"))
    assert spec is not None
    assert spec.loader is not None
    surface = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(surface)
    frozen = surface.FROZEN.read_text(encoding="utf-8").splitlines()

    changed = list(difflib.unified_diff(frozen, surface.lines(), "frozen", "today", lineterm="", n=0))

    assert not changed, "\n".join([*changed, "if this is meant: python tests/contract/surface.py --write"])


def test_every_exported_name_can_be_had() -> None:
    import hypocenter

    missing = [name for name in hypocenter.__all__ if getattr(hypocenter, name, None) is None]

    assert missing == []


def test_names_that_are_loaded_later_are_listed() -> None:
    import hypocenter

    assert [name for name in dir(hypocenter) if not name.startswith("_")] == [
        name for name in hypocenter.__all__ if not name.startswith("_")
    ]
