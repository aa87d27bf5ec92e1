#!/usr/bin/env python3
"""Stands for Slurm's `sbatch FILE`: runs the script with bash as job 4711.

It waits for its end, which sbatch does not. The lines `#SBATCH` are not looked at: what the job
asks for is this machine.
"""

import os
import subprocess
import sys

job = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "127.0.0.1", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
print("Submitted batch job 4711", flush=True)
sys.exit(subprocess.run(["bash", "-eu", *sys.argv[1:]], env=os.environ | job, check=False).returncode)
