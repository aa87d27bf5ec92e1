"""Job configurations of torchtitan."""

from __future__ import annotations

from hypocenter.checklist.catalogue import Source, reader
from hypocenter.checklist.checklist import Given
from hypocenter.checklist.nested import entries

_SECTIONS = {
    "job",
    "model",
    "optimizer",
    "training",
    "parallelism",
    "lr_scheduler",
    "metrics",
    "profiling",
    "checkpoint",
    "activation_checkpoint",
    "experimental",
    "float8",
    "comm",
}


def _accepts(source: Source) -> float:
    if source.path.suffix.lower() not in (".toml", ".json"):
        return 0.0
    is_own = bool(source.inside("training") & {"seq_len", "local_batch_size", "steps", "batch_size"})
    return 0.9 if is_own and len(source.keys & _SECTIONS) >= 2 else 0.0


@reader("torchtitan-toml", accepts=_accepts)
def read(source: Source) -> Given:
    """A job configuration of torchtitan in TOML, of the older sections or the newer."""
    assert source.node is not None
    return Given(kind="torchtitan-toml", table="torchtitan", entries=tuple(entries(source.node, source.name, " = ")))
