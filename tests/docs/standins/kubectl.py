#!/usr/bin/env python3
"""Stands for `kubectl` and a cluster on which Kubeflow starts a PyTorchJob: pods are this machine.

- `apply -f FILE`: the YAML is read. The Master's container runs its command as pod NAME-master-0 with two ranks, and
  with the variables that the operator sets for torchrun (PET_...); the other kinds' commands must be a shell's.
- `exec POD -- COMMAND`: the command, here.
- `cp POD:PATH TARGET`: a copy.

What a container mounts of a claim is the folder `volumes/CLAIM`, wherever a command names the place.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

STATE = Path("volumes/mounted.json")


def apply(path: str) -> int:
    job = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    assert job["kind"] == "PyTorchJob"
    for kind, replica in job["spec"]["pytorchReplicaSpecs"].items():
        pod = replica["template"]["spec"]
        claims = {
            volume["name"]: f"volumes/{volume['persistentVolumeClaim']['claimName']}"
            for volume in pod["volumes"]
            if "persistentVolumeClaim" in volume
        }
        for container in pod["containers"]:
            mounts = {
                mount["mountPath"]: claims[mount["name"]]
                for mount in container["volumeMounts"]
                if mount["name"] in claims
            }
            for folder in mounts.values():
                Path(folder).mkdir(parents=True, exist_ok=True)
            STATE.write_text(json.dumps(mounts), encoding="utf-8")
            shell, option, text = container["command"]
            assert subprocess.run([shell, "-n", option, text], check=False).returncode == 0
            if kind == "Master":
                ranks = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": "0", "PET_STANDALONE": "1"}
                env = os.environ | ranks | {"HOSTNAME": f"{job['metadata']['name']}-master-0"}
                code = subprocess.run([shell, option, _mounted(text)], env=env, check=False).returncode
                if code:
                    return code
    return 0


def _mounted(text: str) -> str:
    for place, folder in json.loads(STATE.read_text(encoding="utf-8")).items():
        text = text.replace(f"{place}/", f"{folder}/")
    return text


def execute(words: list[str]) -> int:
    command = [_mounted(word) for word in words[words.index("--") + 1 :]]
    if command[0] == "hypocenter":
        command = [sys.executable, "-m", *command]
    pid = os.posix_spawn(shutil.which(command[0]) or command[0], command, dict(os.environ))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def copy(source: str, target: str) -> int:
    shutil.copytree(_mounted(source.partition(":")[2] + "/"), target)
    return 0


verb, words = sys.argv[1], sys.argv[2:]
if verb == "apply":
    assert words[0] == "-f"
    sys.exit(apply(words[1]))
sys.exit(execute(words) if verb == "exec" else copy(*words))
