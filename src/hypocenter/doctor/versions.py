"""Versions as tuples that compare, and tables of them from TOML files."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLES = Path(__file__).with_name("tables")


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers: `12.4.1` is (12, 4, 1), `2.6.0+cu124` is (2, 6, 0); empty when there are none."""
    match = re.match(r"\s*[vV]?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def release(version: str) -> str:
    """`12.4` of `12.4.131`; empty when there are not two numbers."""
    parts = numbers(version)
    return f"{parts[0]}.{parts[1]}" if len(parts) > 1 else ""


def major(version: str) -> int | None:
    """12 of `12.4`."""
    return next(iter(numbers(version)), None)


@functools.cache
def table(name: str) -> dict[str, Any]:
    """A table of `tables/` by the name of its file."""
    return tomllib.loads((TABLES / f"{name}.toml").read_text(encoding="utf-8"))
