import hashlib, os
import torch

FAULT = os.environ.get("FAULT", "1") == "1"
torch.set_num_threads(1)


def finish(losses, *models):
    h = hashlib.sha256()
    for m in models:
        for _, t in sorted(m.state_dict().items()):
            t = t.to_local() if hasattr(t, "to_local") else t
            h.update(t.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    rank = os.environ.get("RANK", "0")
    print(f"FINAL {rank} {float(losses[0]):.4f} {float(losses[-1]).hex()} {h.hexdigest()[:12]}", flush=True)
