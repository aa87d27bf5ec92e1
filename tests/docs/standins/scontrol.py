#!/usr/bin/env python3
"""Stands for Slurm's `scontrol show hostnames LIST`: the names of a list that is written out, a line each."""

import sys

command, what, names = sys.argv[1:]
assert (command, what) == ("show", "hostnames")
print(*names.split(","), sep="\n")
