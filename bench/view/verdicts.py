"""`python -m bench.view.verdicts [killed ...]`: how long after a failure of one of 8 gloo ranks `view` names the rank.

One is killed, stopped, raises an exception, or is given NaN. The server runs beside the job, as a user's does.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.view.__main__ import _cookie, _get
from hypocenter.record.liveness import liveness
from hypocenter.record.whereabouts import read_whereabouts
from hypocenter.view.runs import name_of

RANKS, VICTIM, AT, LIMIT_S = 8, 5, 40, 5.0
HOW = tuple(sys.argv[1:]) or ("killed", "stopped", "raised", "nan")
SERVE = """
import sys
from pathlib import Path
from hypocenter.view.serving import Server
server = Server([Path(sys.argv[1])], port=0)
print(server.port, server.token, flush=True)
server.run()
"""


def main() -> int:
    """Fail in each way, and say how long it took; 1 if a verdict came late or named another rank first."""
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="hypocenter-verdicts-") as folder:
        for how in HOW:
            seconds, first = told(Path(folder) / how, how)
            is_right = seconds <= LIMIT_S and f"rank {VICTIM}" in first
            wrong += not is_right
            print(f"{how}: rank {VICTIM} is named after {seconds:.1f} s; what was said first: {first}", flush=True)
    return int(wrong > 0)


def told(folder: Path, how: str) -> tuple[float, str]:
    """Return after how many seconds the page names the rank in a finding, and the first finding that it showed."""
    run, mark = folder / "run", folder / "failed"
    folder.mkdir()
    words = json.dumps({"victim": VICTIM, "at": AT, "how": how, "mark": str(mark)})
    program = str(Path(__file__).with_name("victim.py"))
    launcher = ["torchrun", "--standalone", "--nproc-per-node", str(RANKS), program, words]
    command = [sys.executable, "-m", "hypocenter", "run", "--out", str(run), *launcher]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    quiet = subprocess.DEVNULL
    job = subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True, env=env)
    try:
        while not any(run.glob("rank-*")):
            time.sleep(0.1)
        with subprocess.Popen([sys.executable, "-c", SERVE, str(run)], stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            port, token = server.stdout.readline().split()
            try:
                return _named(int(port), token, f"/run/{name_of(run.resolve())}/part/finding", mark)
            finally:
                server.terminate()
    finally:
        seen = [read_whereabouts(rank) for rank in run.glob("rank-*")]
        for pid in [where.pid for where in seen if where is not None and liveness(where) in ("running", "stopped")]:
            os.kill(pid, signal.SIGKILL)
        job.wait()


def _named(port: int, token: str, path: str, mark: Path) -> tuple[float, str]:
    cookie, first = _cookie(port, token), ""
    while not mark.exists() or not mark.read_text():
        _get(port, path, cookie)
        time.sleep(0.05)
    failed_s = float(mark.read_text())
    while time.time() - failed_s < 60:
        text = _get(port, path, cookie)[1].decode()
        found = " ".join(re.sub(r"<[^>]+>", " ", text).split())
        if "HC" in found:
            first = first or found[:120]
            if re.search(rf"rank {VICTIM}\b", found):
                return time.time() - failed_s, first
        time.sleep(0.05)
    return 60.0, first or "nothing"


if __name__ == "__main__":
    sys.exit(main())
