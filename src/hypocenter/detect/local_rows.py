"""How gradients before their reduction are written: what observers and rules agree on."""

from __future__ import annotations

LOCAL = "grad_local"  # port: a parameter's gradient as it was on this rank alone
REDUCED = "grad_reduced"  # port: the same after its reduction, before clipping; only where it is their plain mean
NORM, RECENT = 0, 1  # `call`: the norm in this step, the largest of the steps before

REMEMBERED = 16  # steps whose norms are kept per parameter
ENOUGH = 4  # of them, before anything is called outlying
NOTED = 30.0  # times the recent maximum: from here on a norm is written at any step
FAR_OUT = 1000.0  # times the recent maximum, and every other rank's: beyond any hard batch
