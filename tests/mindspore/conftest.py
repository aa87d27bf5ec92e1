"""Tests of what runs inside MindSpore: for a Python that has it (./scripts/test makes one); others pass them by."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("mindspore") else ["*"]
