"""What a run is to be made to do is looked at before the program starts: what cannot be read is an error at once."""

from __future__ import annotations

from pathlib import Path

from hypocenter.config import Config
from hypocenter.errors import ConfigError, HypocenterError


def require_readable(config: Config) -> None:
    """Raise ConfigError where a checkpoint, map or recording that is to be imposed cannot be used."""
    try:
        if config.weights_map:
            from hypocenter.compare.pairing.manual_map import read_map

            read_map(config.weights_map)
        if config.initial_weights:
            from hypocenter.compare.weights.catalogue import read_checkpoint

            read_checkpoint(config.initial_weights)
        if config.gradients_from:
            _require_gradients(config.gradients_from)
    except ConfigError:
        raise
    except HypocenterError as error:
        raise ConfigError(error.what, where=error.where, why=error.why, fix=error.fix) from error


def _require_gradients(path: str) -> None:
    from hypocenter.compare.updates.recorded import RecordedUpdates
    from hypocenter.record.reader import open_run

    if not RecordedUpdates(open_run(path)).steps:
        raise ConfigError(
            "the recording holds no gradients", where=f"--gradients-from {Path(path)}",
            why="only level tensors keeps them, at the steps of its schedule",
            fix="record it with `hypocenter run --level tensors --schedule 0,1 ...`",
        )  # fmt: skip
