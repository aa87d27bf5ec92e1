"""The same samples of tokens in two orders."""

from pathlib import Path

import numpy as np

rows = np.random.default_rng(0).integers(0, 1000, (64, 16)).astype(np.int32)
Path("tokens").mkdir()
np.save("tokens/a.npy", rows)
np.save("tokens/b.npy", rows[::-1].copy())
