"""Flags of run_mindformer.py."""

from __future__ import annotations

from hypocenter.checklist.file_entries import FileEntries, framework


@framework("mindformers_run")
def settle(sheet: FileEntries) -> None:
    """Tell of the YAML file that holds nearly everything."""
    if sheet.says("config"):
        sheet.note(f"nearly all is in {sheet.value('config', 'the file of --config')}: give it as a further file")
