"""The toy data of the MindSpore programs, and their last line."""

import hashlib
import os
import random

import numpy as np

FAULT = os.environ.get("FAULT", "1") == "1"


def tell(net, losses=()):
    """Print the losses, and a digest of the cell's parameters."""
    digest = hashlib.sha256()
    for p in sorted(net.get_parameters(), key=lambda p: p.name):
        digest.update(p.name.encode() + p.asnumpy().astype(np.float32).tobytes())
    print("LOSSES", " ".join(f"{float(x):.6g}" for x in losses))
    print("FINAL", digest.hexdigest())


def sentences(count, wide, vocabulary, seed=0):
    """An array of token rows: each token follows from the last two, now and then by chance."""
    chance = random.Random(seed)
    out = []
    for _ in range(count):
        words = [chance.randrange(vocabulary), chance.randrange(vocabulary)]
        while len(words) < wide:
            if chance.random() < 0.15:
                words.append(chance.randrange(vocabulary))
            else:
                words.append((3 * words[-1] + words[-2]) % vocabulary)
        out.append(words)
    return np.array(out, np.int32)
