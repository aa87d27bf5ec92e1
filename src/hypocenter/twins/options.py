"""What a run of a twin records: the first steps in full, and nothing that looks for faults."""

from __future__ import annotations

from hypocenter.config import Config
from hypocenter.twins.change import Asked


def recording(asked: Asked, n_steps: int, *, calibrated: bool = False, change: tuple[str, ...] = ()) -> Config:
    """Return the options with which a run is recorded.

    Args:
        n_steps: to train and record.
        calibrated: its noise floor is measured by replays too.
        change: what is set to another value in the program's processes.
    """
    steps = f"0-{n_steps - 1}"
    return Config(
        level="modules",
        sketch=True,
        schedule=steps,
        param_schedule=steps,
        stop_after_step=n_steps - 1,
        calibrate=steps if calibrated else "never",
        states=steps,
        change=change,
        replay=calibrated,
        cure="off",
        replicas="never",
        collectives="never",
        audit="never",
        agree=False,
        deterministic=asked.deterministic,
        seed=asked.seed,
    )
