"""The one-way flow: import-linter's contracts, and what a fresh process really loads (the linter runs no __init__)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "hypocenter"
RECORDING_HALF = {"tap", "testing", "session", "relations", "replay", "boot", "callbacks", "examine"}
NEEDS_A_FRAMEWORK = (  # and what begins so
    "hypocenter.summary.reducers.torch", "hypocenter.summary.reducers.mindspore", "hypocenter.session.mindspore.",
    "hypocenter.tap.mindspore.", "hypocenter.replay.mindspore.",
)  # fmt: skip
TRAINING_MUST_NOT_LOAD = {"click", "rich", "jinja2", "duckdb", "safetensors"}

_LOADED = """
import importlib, json, pkgutil, sys
skipped, before_name, names = tuple(sys.argv[1].split(",")), sys.argv[2], sys.argv[3:]
if before_name:
    importlib.import_module(before_name)
before = set(sys.modules)
for name in names:
    module = importlib.import_module(name)
    for info in pkgutil.walk_packages(getattr(module, "__path__", []), name + "."):
        if not info.name.startswith(skipped):
            importlib.import_module(info.name)
print(json.dumps(sorted({m.partition(".")[0] for m in set(sys.modules) - before})))
"""


def loaded_by(*names: str, after: str = "") -> set[str]:
    """Top-level packages that a fresh process loads with modules and all below them, beyond what `after` loads."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HYPOCENTER_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), environment.get("PYTHONPATH", "")])
    command = [sys.executable, "-W", "ignore", "-c", _LOADED, ",".join(NEEDS_A_FRAMEWORK), after, *names]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def parts_of_the_reading_half() -> list[str]:
    """Every module and package of hypocenter that is not declared to be of the recording half."""
    parts = {path.stem for path in PACKAGE.glob("*.py")} | {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    return sorted(parts - RECORDING_HALF - {"__init__", "__main__"})


def test_import_contracts_hold() -> None:
    linter = Path(sys.executable).with_name("lint-imports")

    done = subprocess.run(
        [str(linter), "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr


def test_reading_half_loads_no_framework() -> None:
    parts = parts_of_the_reading_half()

    loaded = loaded_by(*(f"hypocenter.{part}" for part in parts))

    assert len(parts) > 25
    assert "hypocenter" in loaded
    assert loaded.isdisjoint({"torch", "mindspore", "transformers", "lightning"})


def test_training_process_loads_nothing_of_the_reading_half() -> None:
    loaded = loaded_by("hypocenter.session", after="torch")

    assert "hypocenter" in loaded
    assert loaded.isdisjoint(TRAINING_MUST_NOT_LOAD)


def test_importing_hypocenter_is_nearly_free() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    code = "import hypocenter, sys; print(*sorted({'torch', 'pyarrow', 'numpy', 'click'} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)

    assert done.stdout.split() == []
