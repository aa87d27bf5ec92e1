"""What every test process needs, before any test starts one of its own."""

from __future__ import annotations

import os
import tempfile

from hypothesis import settings

# With it Python writes a printed line and its end one after the other, and lines of several ranks become mixed.
os.environ.pop("PYTHONUNBUFFERED", None)

# Inductor keeps compiled kernels for all processes of the machine, and under another capability they corrupt memory.
if capability := os.environ.get("ATEN_CPU_CAPABILITY"):
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor-{capability}")

# How long an example takes is the machine's load, not the code's doing.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
