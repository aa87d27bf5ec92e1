"""What `accelerate config` writes."""

from __future__ import annotations

from hypocenter.checklist.catalogue import Source, reader
from hypocenter.checklist.checklist import Given
from hypocenter.checklist.nested import entries

_KEYS = {"distributed_type", "compute_environment", "num_processes", "machine_rank", "num_machines", "mixed_precision"}


def _accepts(source: Source) -> float:
    is_own = "distributed_type" in source.keys or "compute_environment" in source.keys
    return 0.9 if is_own and len(source.keys & _KEYS) >= 2 else 0.0


@reader("accelerate-yaml", accepts=_accepts)
def read(source: Source) -> Given:
    """A configuration of accelerate, YAML or JSON: ranks, format, FSDP, DeepSpeed."""
    assert source.node is not None
    return Given(kind="accelerate-yaml", table="accelerate", entries=tuple(entries(source.node, source.name)))
