#!/usr/bin/env python3
"""Stands for `pip install`, which CI has done: each requirement must be this checkout or one of its extras."""

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[3]
project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
command, *requirements = sys.argv[1:]
assert command == "install"
assert requirements
for requirement in requirements:
    found = re.fullmatch(r"(\.|[\w-]+)(?:\[([\w,-]+)\])?", requirement)
    if not found or found[1] not in (".", project["name"]):
        sys.exit(f"not of this project: {requirement}")
    if unknown := {extra for extra in (found[2] or "").split(",") if extra} - set(project["optional-dependencies"]):
        sys.exit(f"no such extra: {', '.join(unknown)}")
