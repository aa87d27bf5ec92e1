"""DDP and FSDP2 on all GPUs, at most 8: the same bits, nothing found; and a NaN of one rank is that rank's."""

from __future__ import annotations

from pathlib import Path

from bench.gpu.rows import Row, findings, identity, watched

NEEDS = ("cuda", "cpu")
MOST = 8


def run(device: str, folder: Path) -> list[Row]:
    """Two ranks at least; with one GPU they share it, and talk by gloo."""
    import torch

    n = min(MOST, max(2, torch.cuda.device_count())) if device == "cuda" else 2
    rows: list[Row] = []
    for name in ("ddp", "fsdp2") if device == "cuda" else ("ddp",):
        given = ("--device", device, "--parallel", name, "--steps", "6")
        rows += identity(f"{name}, {n} ranks", folder / name, *given, ranks=n)
        if "not run" in rows[-1].seen:
            continue
        out = folder / f"{name}-nan"
        watched(out, *given, "--nan-at", "3", "--nan-rank", str(n - 1), ranks=n)
        found = next((each for each in findings(out) if each.get("step") == 3), {})
        shown = f"step {found.get('step')}, rank {found.get('rank')}, {found.get('site')}"
        wanted = f"step 3, rank {n - 1}, blocks.1"
        rows.append(Row(what=f"{name}: a NaN of rank {n - 1}", seen=shown, expected=wanted, is_ok=shown == wanted))
    return rows
