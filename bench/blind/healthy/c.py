import hashlib, os, random
import numpy, torch

torch.set_num_threads(1)
FOLDER = os.environ.get("BLIND_FOLDER", "/tmp")


def seed(s=0):
    random.seed(s)
    numpy.random.seed(s)
    torch.manual_seed(s)


def final(loss, *models):
    h = hashlib.sha256()
    for m in models:
        for v in m.state_dict().values():
            if torch.is_tensor(v):
                v = v.full_tensor() if hasattr(v, "full_tensor") else v
                h.update(v.detach().float().contiguous().numpy().tobytes())
    r = os.environ.get("RANK", "0")
    print(f"FINAL {r} {float(loss).hex()} {float(loss):.6f} {h.hexdigest()[:12]}", flush=True)
