"""A table: requests to the store for each rank, and hops until all ranks know that one of them has failed."""

from __future__ import annotations

import time

from bench.agreement.simulate import HOP_S, STORE_S, Job, assemble, meet

SIZES = (128, 512, 2_048, 10_000)


def main() -> None:
    """Print it."""
    print("ranks   requests   per rank   store busy   hops of a meeting   with a ring   simulated in")
    for n in SIZES:
        began = time.perf_counter()
        job = Job(n)
        found = assemble(job)
        assert all(each.outcome is not None for each in found), found[0].why_not
        asked, job.asked = sum(job.asked.values()), type(job.asked)()
        job.clocks = [0.0] * n
        _, seconds = meet(job, [[int(rank == n // 2)] for rank in range(n)])
        print(
            f"{n:6,}  {asked:9,}  {asked / n:9.1f}  {asked * STORE_S:9.2f} s  {round(seconds / HOP_S):18}  "
            f"{2 * (n - 1):12,}  {time.perf_counter() - began:10.1f} s"
        )


if __name__ == "__main__":
    main()
