"""Losses of three runs as CSV: a baseline, its repeat, and one that departs."""

import math
import random
from pathlib import Path

drawn = random.Random(0)
for name, gap in (("gpu.csv", 0.0), ("gpu-again.csv", 0.0), ("npu.csv", 0.05)):
    with Path(name).open("w") as file:
        file.write("step,loss,lr\n")
        for step in range(600):
            loss = 2 + 4 * math.exp(-step / 120) + drawn.gauss(0, 0.005) + (gap if step > 300 else 0)
            file.write(f"{step},{loss:.6f},0.001\n")
