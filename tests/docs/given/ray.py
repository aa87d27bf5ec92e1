"""Stands for Ray: actors are processes of this machine.

Without a `runtime_env` Ray is started here, and actors inherit the environment. With one it stands for a cluster that
runs already: they have PATH, HOME and what is given as `env_vars`. Nothing else is understood.
"""

from __future__ import annotations

import os
import subprocess
import sys

_seen = dict(os.environ)


def init(*, runtime_env: dict[str, dict[str, str]] | None = None) -> None:
    """Remember what actors are to get."""
    global _seen
    if runtime_env is not None:
        (given,) = runtime_env
        assert given == "env_vars"
        assert all(isinstance(value, str) for value in runtime_env[given].values())
        _seen = {name: os.environ[name] for name in ("PATH", "HOME", "OMP_NUM_THREADS")} | runtime_env[given]


def run_as_actor(program: str) -> None:
    """A program of Python in an actor's process."""
    subprocess.run([sys.executable, "-c", program], env=_seen, check=True)
