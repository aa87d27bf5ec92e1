"""Reports as the ranks of a job send them, made up: all well, then whatever a test changes."""

from __future__ import annotations

from hypocenter.doctor.communication import Examined
from hypocenter.doctor.over_ranks import judged

OPS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
TEST = {"name": "matmul", "dtype": "float32", "n": 64, "n_wrong": 0, "worst": 0.1, "digest": "aa", "n_repeats": 9,
        "n_unequal": 0}  # fmt: skip


def facts(rank, host="node0", serial="", name="CPU", kind="cpu", **more):
    return {
        "host": host, "pid": 100 + rank, "address": "10.0.0.1", "port": 5, "name_is": "10.0.0.1", "local_rank": rank,
        "device": {"kind": kind, "index": rank, "name": name, "serial": serial, "backend": "gloo"}, "memory": {},
        "versions": {"torch": "2.13.0", "python": "3.12.1"}, **more,
    }  # fmt: skip


def report(rank, n_ranks, **more):
    others = [str(r) for r in range(n_ranks) if r != rank]
    collectives = {op: {"n_cases": 15, "n_wrong": 0, "dtypes": ["int64"], "wrong": [], "skipped": []} for op in OPS}
    times = {"launch_ms": [0.1] * 7, "core_wait_ms": [0.0] * 7, "total_ms": [5.0] * 7}
    return {
        "rank": rank, "at": "done", "at_s": 0.0, "troubles": [], "again": [], "small_groups": [],
        "links": {other: {"ms": 0.2} for other in others}, "barrier": {"us": 90.0, "n": 10},
        "pairs": {other: {"n_wrong": 0, "n": 131072, "gib_s": 2.0} for other in others},
        "collectives": collectives, "pace": {op: {"n_bytes": 1 << 22, "bus_gib_s": 1.0, **times} for op in OPS},
        "arithmetic": {"device": "CPU", "kind": "cpu", "group": "CPU, torch 2.13", "tests": [dict(TEST)], "skipped": [],
                       "matmul_ms": [2.0] * 7, "core_wait_ms": [0.0] * 7},
        "own": [], "settings": {}, "log": [], **more,
    }  # fmt: skip


class Job:
    """A job that is well; take it apart."""

    def __init__(self, n_ranks=4):
        self.n_ranks = n_ranks
        self.facts = {rank: facts(rank) for rank in range(n_ranks)}
        self.reports = {rank: report(rank, n_ranks) for rank in range(n_ranks)}
        self.silent, self.late, self.dead, self.hosts = {}, [], {}, {}
        self.backend = "gloo"

    def without(self, rank):
        del self.facts[rank], self.reports[rank]

    def judged(self) -> Examined:
        """As the rank that leads judges it; reports come in any order."""
        message = {
            "reports": [self.reports[rank] for rank in sorted(self.reports, reverse=True)],
            "roster": {
                "ranks": sorted(self.facts), "facts": {str(rank): each for rank, each in self.facts.items()},
                "backend": self.backend, "why_gloo": "",
            },
            "silent": {str(rank): at for rank, at in self.silent.items()}, "late": self.late,
            "dead": {str(rank): how for rank, how in self.dead.items()}, "n_ranks": self.n_ranks,
        }  # fmt: skip
        return judged(message, self.hosts)

    def troubles(self):
        """(code, rank) of everything that is not well."""
        return [(c.code, c.rank) for c in self.judged().checks if c.status in ("problem", "warning")]

    def what(self, code):
        """The sentence of a check."""
        return next(check.what for check in self.judged().checks if check.code == code)
