#!/usr/bin/env python3
"""Stands for Open MPI's `mpirun`: starts the command behind its options as two ranks with Open MPI's variables.

As over ssh, a rank has of our variables and of PYTHONPATH only what `-x NAME` passes on.
"""

import os
import sys

from ranks import N_RANKS, run_ranks

words, passed = sys.argv[1:], set()
while words[0].startswith("-"):
    passed |= {words[1]} if words[0] == "-x" else set()
    assert words[0] in ("-x", "-n"), words[0]
    words = words[2:]
for name in [name for name in os.environ if name.startswith("HYPOCENTER_") or name == "PYTHONPATH"]:
    if name not in passed:
        del os.environ[name]
run_ranks(
    words,
    lambda rank: {
        "OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_LOCAL_RANK": rank, "OMPI_COMM_WORLD_SIZE": N_RANKS,
        "OMPI_COMM_WORLD_LOCAL_SIZE": N_RANKS, "PMIX_NAMESPACE": f"job-{os.getpid()}",
    },
)  # fmt: skip
