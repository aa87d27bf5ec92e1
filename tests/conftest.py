"""What every test process needs, before any test starts one of its own."""

from __future__ import annotations

import os

# With it Python writes a printed line and its end one after the other, and lines of several ranks become mixed.
os.environ.pop("PYTHONUNBUFFERED", None)
