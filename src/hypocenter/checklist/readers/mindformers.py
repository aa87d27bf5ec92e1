"""YAML files of MindFormers."""

from __future__ import annotations

from dataclasses import replace

from hypocenter.checklist.catalogue import Source, reader
from hypocenter.checklist.checklist import Entry, Given
from hypocenter.checklist.nested import entries

_SECTIONS = {
    "runner_config",
    "parallel_config",
    "runner_wrapper",
    "train_dataset_task",
    "recompute_config",
    "moe_config",
    "trainer",
    "lr_schedule",
    "context",
    "callbacks",
    "processor",
}
_INNER = "model.model_config."
_MOVED = ("moe_config.", "parallel_config.", "recompute_config.")


def _accepts(source: Source) -> float:
    if source.path.suffix.lower() == ".toml" or not source.keys:
        return 0.0
    if "model_config" in source.inside("model"):
        return 0.95
    return 0.85 if len(source.keys & _SECTIONS) >= 3 else 0.0


@reader("mindformers-yaml", accepts=_accepts)
def read(source: Source) -> Given:
    """A YAML file of MindFormers: model_config, optimizer, lr_schedule, parallel_config, runner_config, context."""
    assert source.node is not None
    found = tuple(_lifted(entry) for entry in entries(source.node, source.name))
    return Given(kind="mindformers-yaml", table="mindformers", entries=found)


def _lifted(entry: Entry) -> Entry:
    """Return an entry in the model's configuration that belongs to no model under its own section."""
    inner = entry.key.removeprefix(_INNER)
    if inner != entry.key and inner.startswith(_MOVED):
        return replace(entry, key=inner)
    return replace(entry, value=None) if entry.value == "" else entry  # an empty path is none
