"""Record two steps of a network in this process, and its spots as cards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

import hypocenter
from hypocenter.compare.comparison import SiteCard, Spot
from hypocenter.record.reader import open_run


def record(
    model: torch.nn.Module, loss_of: Callable[[torch.Tensor], torch.Tensor], out: Path, *, calibrate: str = "never"
) -> list[SiteCard]:
    """Train two steps on fixed batches, recorded at level modules with sketches."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(11)  # its state is recorded too
    numbers = torch.Generator().manual_seed(7)
    options = {"level": "modules", "sketch": True, "param_schedule": "every=1", "replay": False, "audit": "never"}
    options["calibrate"] = calibrate
    with hypocenter.watch(model, optimizer, out=out, **options):
        for _ in range(2):
            loss = loss_of(torch.randint(0, 128, (2, 10), generator=numbers))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return cards_of(out)


def cards_of(run: Path) -> list[SiteCard]:
    """A card of every spot, from the first row of it."""
    found: dict[Spot, SiteCard] = {}
    for row in open_run(run).readings():
        spot = Spot(phase=row.phase, site=row.site, port=row.port, call=row.call)
        if spot not in found and not (row.op or row.recompute or row.replay):
            s = row.summary
            found[spot] = SiteCard(
                spot=spot, order=len(found), module=row.module, dtype=row.dtype, shape=row.shape, names=row.names,
                n=s.n, sumsq=s.sumsq, absmax=s.absmax, hist_first=s.hist_first, hist=s.hist, sketch=s.sketch,
                digest=row.digest,
            )  # fmt: skip
    return list(found.values())
