"""Pass a file of tests by where a package is missing, without importing it: each worker would, at collection."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def skip_without(*names: str) -> None:
    """For files whose programs import these; at the top of the file."""
    for name in names:
        try:
            found = find_spec(name)
        except ModuleNotFoundError:  # of the package that it is in
            found = None
        if found is None:
            pytest.skip(f"{name} is not installed", allow_module_level=True)
