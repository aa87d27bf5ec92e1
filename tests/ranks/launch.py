"""Run a script on several forked ranks under Hypocenter, diagnose it, and give what was found."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "processes"))

import warm  # noqa: E402

FORKS = Path(__file__).with_name("forks.py")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a run of several ranks ended."""

    code: int
    stdout: str
    stderr: str
    run: Path | None = None  # the recording
    diagnosis: dict[str, Any] = field(default_factory=dict)

    @property
    def alarms(self) -> list[dict[str, Any]]:
        """Findings of severity warning or error."""
        return [f for f in self.diagnosis.get("findings", ()) if f["severity"] in ("error", "warning")]


def environment() -> dict[str, str]:
    """One thread, no network, no options from outside, the package as it is in this checkout."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HYPOCENTER_")}
    paths = [str(ROOT / "src"), *filter(None, [kept.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}


def launch(
    script: Path,
    *args: str,
    n: int = 2,
    out: Path | None = None,
    config: dict[str, Any] | None = None,
    timeout: float = 120,
) -> Ended:
    """Run `script` on `n` forked ranks; recorded to `out` and diagnosed when given, else plain."""
    command = [sys.executable, str(FORKS), "--nproc-per-node", str(n)]
    if out is not None:
        command += ["--out", str(out), "--config", json.dumps(config or {})]
    done = warm.run([*command, str(script), *args], timeout=timeout, env=environment())
    return Ended(
        code=done.returncode, stdout=done.stdout, stderr=done.stderr, run=out,
        diagnosis=diagnosed(out) if out is not None and out.is_dir() else {},
    )  # fmt: skip


def diagnosed(run: Path) -> dict[str, Any]:
    """diagnosis.json of a recording, made in this process."""
    from hypocenter.diagnose.diagnosis import diagnose
    from hypocenter.json_answer import to_json
    from hypocenter.record.reader import open_run

    return json.loads(to_json(diagnose(open_run(run))))
