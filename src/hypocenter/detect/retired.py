"""Codes of rules that are gone, for what was recorded or written down before: another rule says it now."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

RETIRED: Mapping[str, str] = MappingProxyType({"HC206": "HC203", "HC302": "HC301"})
"""Code -> the one of the rule that has taken over. A code is never given to another rule."""
