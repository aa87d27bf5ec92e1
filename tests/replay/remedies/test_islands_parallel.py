"""Islands under data parallelism and FSDP2, put on before and after wrapping."""

import os
import socket
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("parallel_islands.py")
SOURCE = Path(__file__).resolve().parents[3] / "src"


def test_two_ranks_compute_what_one_process_does():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = os.environ | {
        "PYTHONPATH": str(SOURCE), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip

    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM)], env=shared | {"RANK": str(rank)}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    done = [rank.communicate(timeout=120)[0] for rank in ranks]

    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(done)
    assert all(text.count("worst") == 4 and "sharded" in text for text in done), done
