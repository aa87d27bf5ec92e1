import hashlib, os, random
import numpy, torch

FAULT = os.environ.get("FAULT", "1") == "1"
torch.set_num_threads(1)


def seed(s=0):
    random.seed(s)
    numpy.random.seed(s)
    torch.manual_seed(s)


def final(loss, *models):
    h = hashlib.sha256()
    for m in models:
        for k, v in m.state_dict().items():
            if torch.is_tensor(v):
                if hasattr(v, "to_local"):
                    v = v.to_local()
                h.update(v.detach().float().contiguous().numpy().tobytes())
    r = os.environ.get("RANK", "0")
    print(f"FINAL {r} {float(loss).hex()} {float(loss):.6f} {h.hexdigest()[:12]}", flush=True)
