#!/usr/bin/env python3
"""Stands for Slurm's `srun`: starts the command line behind its options as two tasks of one job step.

Each has the variables that Slurm sets in a task (srun's manual, OUTPUT ENVIRONMENT VARIABLES). With
`--ntasks-per-node=1` each task is on a node of its own. Nodes are this machine; options are not looked at further.
"""

import os
import sys

from ranks import N_RANKS, run_ranks

words = sys.argv[1:]
is_apart = "--ntasks-per-node=1" in words
while words[0].startswith("-"):
    words = words[1:]
nodes = ",".join(["127.0.0.1"] * (N_RANKS if is_apart else 1))
run_ranks(
    words,
    lambda rank: {
        "SLURM_JOB_ID": os.environ.get("SLURM_JOB_ID", "4711"), "SLURM_STEP_ID": 0, "SLURM_STEP_NODELIST": nodes,
        "SLURM_PROCID": rank, "SLURM_LOCALID": 0 if is_apart else rank, "SLURM_NODEID": rank if is_apart else 0,
        "SLURM_NTASKS": N_RANKS, "SLURM_STEP_NUM_TASKS": N_RANKS,
        "SLURM_STEP_TASKS_PER_NODE": f"1(x{N_RANKS})" if is_apart else N_RANKS,
    },
)  # fmt: skip
