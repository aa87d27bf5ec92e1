"""DeepSpeed on gloo, for two processes that torchrun started or for one alone."""

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("RANK", "0")
os.environ.setdefault("LOCAL_RANK", "0")
os.environ.setdefault("WORLD_SIZE", "1")
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29654")
import deepspeed  # noqa: E402

deepspeed.init_distributed("gloo", verbose=False)
