"""How often a step waits for the device, watched and not, by `torch.cuda.set_sync_debug_mode`."""

from __future__ import annotations

from pathlib import Path

from bench.gpu.rows import Row, train, watched

NEEDS = ("cuda",)
FEATURES = {"plain": (), "clipping": ("--clip",), "GradScaler": ("--scaler",), "both": ("--clip", "--scaler")}
MORE = 1.3  # syncs: one check of gradients, and what is looked at every some steps


def run(device: str, folder: Path) -> list[Row]:
    """Sentinel may wait once more than the program does; `modules` once more than that."""
    rows: list[Row] = []
    for level, allowed in (("sentinel", MORE), ("modules", MORE + 1.0)):
        for name, options in FEATURES.items():
            given = ("--device", device, "--measure", "syncs", "--steps", "48", *options)
            alone = train(*given)
            seen = watched(folder / f"{level}-{name}", *given, watch=("--level", level, "--audit", "never"))
            a, b = alone.told("syncs"), seen.told("syncs")
            if a is None or b is None:
                rows.append(Row(what=f"{name}, {level}", seen=f"not run: {(seen if a is not None else alone).why}"))
                continue
            shown = f"{b - a:+.2f} (of its own {a:.2f})"
            rows.append(Row(what=f"{name}, {level}", seen=shown, expected=f"<= {allowed}", is_ok=b - a <= allowed))
    return rows
