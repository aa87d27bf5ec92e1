"""What a page says first of a run: how it was started, with what, from which source, with which options."""

from __future__ import annotations

import shlex
from dataclasses import asdict

from hypocenter.config import Config
from hypocenter.nouns import Run
from hypocenter.report import wording

_FIRST = ("hypocenter", "python", "torch", "mindspore")  # versions that are named in the line itself
_SAID = ("level", "out", "force")  # elsewhere on the page, or of no interest to who reads it


def run_facts(run: Run) -> list[tuple[str, str]]:
    """Return pairs of a name and what it was; what is not known is left out."""
    versions = [f"{name} {version}" for name, version in sorted(run.versions.items(), key=_order)]
    options = [
        f"{name} = {_value(value)}"
        for name, value in run.config.items()
        if name not in _SAID and _DEFAULTS.get(name, value) != value
    ]
    imported = f"{run.imported.kind} {run.imported.path}".strip() if run.imported else ""
    found = {
        "command": shlex.join(run.command),
        "in": f"{run.folder} on {run.host}" if run.folder and run.host else run.folder or run.host,
        "imported from": imported,
        "source": run.git,
        "versions": ", ".join(versions),
        "options": ", ".join(options) or ("all as they are by default" if run.config else ""),
        "imposed": "; ".join(f"{name}: {text}" for name, text in run.imposed.items()),
        "recorded": f"{run.started} to {run.ended}" if run.started and run.ended else run.started,
    }
    return [(name, wording.clean(text, 1000)) for name, text in found.items() if text]


def in_a_line(run: Run) -> str:
    """Return the run in a line: `train.py --lr 1 · torch 2.6.0 · 3f2a9c1b on main`."""
    framework = next((f"{name} {run.versions[name]}" for name in ("torch", "mindspore") if name in run.versions), "")
    parts = (wording.clean(text, 160) for text in (shlex.join(run.command), framework, run.git) if text)
    return " · ".join(parts) or "the run"


_DEFAULTS = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(Config()).items()}


def _order(item: tuple[str, str]) -> tuple[int, str]:
    name = item[0]
    return (_FIRST.index(name) if name in _FIRST else len(_FIRST), name)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
