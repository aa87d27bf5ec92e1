"""What tensors were made of, in any framework: two that have a mark in common were made of the same."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

Marks: TypeAlias = "frozenset[Hashable]"
NONE: Marks = frozenset()
