"""What the programs share: the switch, a folder to write in, and a last line that names every bit of the weights."""

import hashlib
import os

import torch

FAULT = os.environ.get("FAULT", "1") == "1"
OUT = os.environ.get("BLIND_FOLDER", ".")


def tell(model, losses):
    """Print the losses, and a digest of the model's weights and buffers."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        digest.update(name.encode() + value.detach().contiguous().float().cpu().numpy().tobytes())
    print("LOSSES", " ".join(f"{float(x):.6g}" for x in losses))
    print("FINAL", digest.hexdigest())


def words(count, length, vocabulary, seed=0):
    """Sequences in which each token follows from the last one, now and then by chance; none is below 4."""
    g = torch.Generator().manual_seed(seed)
    out = torch.randint(4, vocabulary, (count, length), generator=g)
    for t in range(1, length):
        by_rule = 4 + (5 * out[:, t - 1] + 3) % (vocabulary - 4)
        out[:, t] = torch.where(torch.rand(count, generator=g) < 0.1, out[:, t], by_rule)
    return out


def metric(name, value):
    """Print what a person would look at in the end."""
    print(f"METRIC {name} {float(torch.as_tensor(value).detach()):.5g}")
