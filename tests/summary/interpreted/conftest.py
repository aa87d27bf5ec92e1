"""Triton's kernels in its interpreter, on the CPU: for a Python that has Triton (`test_reducer_triton.py` starts it).

Whether kernels are interpreted is settled when they are imported, so they get a process of their own.
"""

import os
from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("triton") and os.environ.get("TRITON_INTERPRET") == "1" else ["*"]
