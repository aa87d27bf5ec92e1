"""Where this process stands in its job, and where the job's ranks can meet: from what the launcher has set."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from hypocenter import launcher

_FIRST_PORT, _N_PORTS = 15000, 15000  # below those that Linux gives to whoever asks for any


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One rank of a job, and the store where all ranks meet."""

    rank: int
    n_ranks: int
    local_rank: int
    host: str  # of the store
    port: int
    hosts_store: bool
    key: str  # the same for all ranks of this attempt, for no others
    launcher: str


def place(environ: Mapping[str, str] = os.environ) -> Place | None:
    """Return this process as one of several ranks; None without a launcher. `host` is "" when nobody says it."""
    task = launcher.task(environ)
    if task is None:
        return None
    host, port = _store(environ)
    has_agent = environ.get("TORCHELASTIC_USE_AGENT_STORE", "") == "True"  # torchrun's agent keeps a store
    return Place(
        rank=task.number, n_ranks=task.n_tasks, local_rank=launcher.local_rank(environ) or 0, host=host, port=port,
        hosts_store=task.number == 0 and not has_agent, key=f"{task.job}/{launcher.attempt(environ)}",
        launcher=launcher.launcher(environ),
    )  # fmt: skip


def hosts_of(environ: Mapping[str, str] = os.environ) -> dict[int, str]:
    """Return the host of each rank, where the launcher says it: srun, ranks in blocks. Empty when unknown."""
    names = expanded(environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_NODELIST", ""))
    counts = _counts(environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", ""))
    if launcher.launcher(environ) != "srun" or len(names) != len(counts):
        return {}
    if not environ.get("SLURM_DISTRIBUTION", "block").startswith("block"):
        return {}
    spread = [name for name, count in zip(names, counts, strict=True) for _ in range(count)]
    return dict(enumerate(spread))


def expanded(nodes: str) -> list[str]:
    """Return the host names of SLURM's short form: "gpu[01-03,7],login" is gpu01, gpu02, gpu03, gpu7, login."""
    names: list[str] = []
    for prefix, inside, suffix in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?([^,\[]*)", nodes):
        if not inside:
            names.append(prefix + suffix)
            continue
        for part in inside.split(","):
            first, _, last = part.partition("-")
            numbers = range(int(first), int(last or first) + 1)
            names += [f"{prefix}{number:0{len(first)}d}{suffix}" for number in numbers]
    return names


def local_environment(environ: Mapping[str, str], rank: int, n_ranks: int, port: int) -> dict[str, str]:
    """Return the environment that torchrun would give to a local rank."""
    kept = {
        name: value for name, value in environ.items()
        if not name.startswith(("HYPOCENTER_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_"))
    }  # fmt: skip
    return {"OMP_NUM_THREADS": "1"} | kept | {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(n_ranks), "LOCAL_WORLD_SIZE": str(n_ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip


def free_port() -> socket.socket:
    """Return a socket that listens on a free port of the loopback, to be handed to who needs it."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(128)
    return listening


def _store(environ: Mapping[str, str]) -> tuple[str, int]:
    host = environ.get("MASTER_ADDR", "")
    port = environ.get("MASTER_PORT", "")
    job = environ.get("SLURM_JOB_ID", "")
    if not host and job.isdecimal():
        names = expanded(environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_NODELIST", ""))
        host = names[0] if names else ""
    if port.isdecimal():
        return host, int(port)
    number = int(job) * 7 + int(environ.get("SLURM_STEP_ID", "0") or 0) if job.isdecimal() else 0
    return host, _FIRST_PORT + number % _N_PORTS


def _counts(text: str) -> list[int]:
    """Return the counts of SLURM's short form: [2, 2, 2, 1] for "2(x3),1"."""
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    return counts
