"""Run the benchmark: `python -m bench.view [--ranks N] [--clients N] [--steps N] [--seconds S] [--keep DIR]`."""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from hypocenter.nouns import Attempt, Coords, Place, StepRecord
from hypocenter.record.place_file import write_place
from hypocenter.record.run_file import start_run
from hypocenter.record.writer import Writer
from hypocenter.view.runs import name_of

MOST_MIB, MOST_MS, MOST_SEEN_S = 300.0, 200.0, 2.0
MOST_WRITERS = 1000  # ranks that go on: each holds files open
SERVE = """
import sys
from pathlib import Path
from hypocenter.view.serving import Server
server = Server([Path(sys.argv[1])], port=0, diagnoses=False)
print(server.port, server.token, flush=True)
server.run()
"""


@dataclass
class Asked:
    """What one client met."""

    answers_ms: dict[str, list[float]] = field(default_factory=dict)
    wrong: int = 0


def main() -> int:
    """Write, serve, ask; exit with 1 when a limit is exceeded."""
    wanted = _arguments()
    with tempfile.TemporaryDirectory(prefix="hypocenter-view-") as folder:
        run = Path(wanted.keep or folder) / "run"
        writers = _write(run, wanted.ranks, wanted.steps)
        command = [sys.executable, "-c", SERVE, str(run)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            port, token = server.stdout.readline().split()
            try:
                return _measure(wanted, run, writers, server.pid, int(port), token)
            finally:
                server.terminate()


def _measure(wanted: argparse.Namespace, run: Path, writers: list[Writer], pid: int, port: int, token: str) -> int:
    cookie = _cookie(port, token)
    path = f"/run/{name_of(run.resolve())}"
    first_ms = _timed(port, path, cookie)[0]
    started = time.perf_counter()
    while (found := _get(port, f"{path}/part/status", cookie))[0] != 200 or b"reading" in found[1]:
        time.sleep(0.05)
    read_s = time.perf_counter() - started
    ends_s = time.monotonic() + wanted.seconds
    asked = [Asked() for _ in range(wanted.clients)]
    threads = [threading.Thread(target=_browse, args=(port, path, cookie, ends_s, one)) for one in asked]
    for thread in threads:
        thread.start()
    seen_s, step = [], wanted.steps
    while time.monotonic() < ends_s:
        for writer in writers:
            writer.write([], StepRecord(step=step, loss=1.0, grad_norm=1.0, step_ms=500.0))
        seen_s.append(_seen(port, path, cookie, step, time.monotonic()))
        step += 1
        time.sleep(0.3)
    for thread in threads:
        thread.join()
    return _tell(wanted, asked, pid, first_ms, read_s, seen_s)


def _tell(
    wanted: argparse.Namespace, asked: list[Asked], pid: int, first_ms: float, read_s: float, seen_s: list[float]
) -> int:
    peak_mib = _peak_mib(pid)
    print(f"{wanted.ranks:,} ranks, {wanted.clients} browsers, {wanted.seconds:.0f} s")
    print(
        f"first page {first_ms:.0f} ms; all ranks read after {read_s:.1f} s; server's memory at most {peak_mib:.0f} MiB"
    )
    slowest = first_ms
    for kind in ("page", "state", "unchanged", "part"):
        times = sorted(ms for one in asked for ms in one.answers_ms.get(kind, []))
        if times:
            slowest = max(slowest, times[int(len(times) * 0.99)])
            print(f"{kind:10} {len(times):6,} answers, median {times[len(times) // 2]:6.1f} ms, 99 of 100 below "
                  f"{times[int(len(times) * 0.99)]:6.1f} ms, slowest {times[-1]:6.1f} ms")  # fmt: skip
    typical_s, n_going_on = sorted(seen_s)[len(seen_s) // 2], min(wanted.ranks, MOST_WRITERS)
    print(f"a step of {n_going_on:,} ranks is seen after {typical_s:.2f} s, at most {max(seen_s):.2f} s")
    wrong = sum(one.wrong for one in asked)
    failed = [
        text
        for is_so, text in (
            (peak_mib > MOST_MIB, f"{peak_mib:.0f} MiB are more than {MOST_MIB:.0f}"),
            (slowest > MOST_MS, f"{slowest:.0f} ms are more than {MOST_MS:.0f}"),
            (max(seen_s) > MOST_SEEN_S, f"{max(seen_s):.1f} s are more than {MOST_SEEN_S:.0f}"),
            (wrong > 0, f"{wrong} answers were errors"),
        )
        if is_so
    ]
    for line in failed:
        print(f"wrong: {line}", file=sys.stderr)
    return 1 if failed else 0


def _browse(port: int, path: str, cookie: str, ends_s: float, asked: Asked) -> None:
    """Do what live.js does, over one connection as a browser."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    tags: dict[str, str] = {}

    def get(rest: str, kind: str, tag: str = "") -> tuple[int, dict[str, str], bytes]:
        headers = {"Cookie": cookie, "Accept-Encoding": "gzip", **({"If-None-Match": tag} if tag else {})}
        began = time.perf_counter()
        connection.request("GET", path + rest, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        kind = "unchanged" if answer.status == 304 else kind
        asked.answers_ms.setdefault(kind, []).append((time.perf_counter() - began) * 1000)
        asked.wrong += answer.status not in (200, 304)
        return answer.status, dict(answer.getheaders()), body

    get("", "page")
    tag = ""
    while time.monotonic() < ends_s:
        status, headers, body = get("/state", "state", tag)
        if status == 200:
            tag = {name.lower(): value for name, value in headers.items()}["etag"]
            import gzip

            text = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
            parts: dict[str, str] = json.loads(text)["parts"]
            for name in [name for name, of in parts.items() if tags.get(name) != of]:
                get(f"/part/{name}", "part")
                tags[name] = parts[name]
        time.sleep(1.0)


def _seen(port: int, path: str, cookie: str, step: int, since_s: float) -> float:
    while f'<td class="mono">{step:,}</td>' not in _get(port, f"{path}/part/steps", cookie)[1].decode():
        if time.monotonic() - since_s > 30:
            break
        time.sleep(0.02)
    return time.monotonic() - since_s


def _get(port: int, path: str, cookie: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers={"Cookie": cookie})
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def _timed(port: int, path: str, cookie: str) -> tuple[float, bytes]:
    began = time.perf_counter()
    body = _get(port, path, cookie)[1]
    return (time.perf_counter() - began) * 1000, body


def _cookie(port: int, token: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", f"/?token={token}")
    return (connection.getresponse().getheader("set-cookie") or "").partition(";")[0]


def _write(run: Path, ranks: int, steps: int) -> list[Writer]:
    started = time.perf_counter()
    start_run(run, ["python", "train.py"], {"level": "sentinel"}, ranks, {"hypocenter": "0"})
    writers = list[Writer]()
    for rank in range(ranks):
        writer = Writer(run, rank=rank, warn=print)
        host, coords = f"node{rank // 8:03}", Coords(tp=rank % 8, dp=rank // 8)
        write_place(run, Place(rank=rank, world_size=ranks, host=host, coords=coords), Attempt(host=host))
        for step in range(steps):
            writer.write([], StepRecord(step=step, loss=3.0 / (step + 1), grad_norm=1.0, lr=1e-3, step_ms=500.0))
        if rank < MOST_WRITERS:
            writers.append(writer)
        else:
            writer.close()
    print(f"written in {time.perf_counter() - started:.0f} s", file=sys.stderr)
    return writers


def _peak_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(text.split("VmHWM:")[1].split()[0]) / 1024


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--keep", help="folder for the recording")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
