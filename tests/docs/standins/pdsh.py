#!/usr/bin/env python3
"""Stands for `pdsh -S -f N -w HOST,HOST COMMAND`, by which DeepSpeed reaches its nodes: all of them are this machine.

As over ssh, a node has of our variables and of PYTHONPATH only what the command itself exports. Its number stands for
`%n`. DeepSpeed's own port becomes one that is free.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "processes"))
from ports import free_port

shared, option, _, where, hosts, *command = sys.argv[1:]
assert (shared, option, where) == ("-S", "-f", "-w")
line = re.sub(r"(--master_port=)\d+", rf"\g<1>{free_port()}", " ".join(command))
assert "deepspeed.launcher.launch" in line, line
env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" and "HYPOCENTER" not in name}
nodes = [
    subprocess.Popen(["bash", "-c", line.replace("%n", str(number))], env=env)
    for number, _ in enumerate(hosts.split(","))
]
sys.exit(max(abs(node.wait()) for node in nodes))
