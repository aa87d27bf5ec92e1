"""What NCCL has printed on the ranks."""

from __future__ import annotations

from hypocenter.doctor import nccl_log
from hypocenter.doctor.answer import Check
from hypocenter.doctor.over_ranks.reports import Reports

order = 8  # in which judges are asked


def judge(reports: Reports) -> list[Check]:
    """Judge NCCL's transports, versions and warnings; return [] where it was not used."""
    lines = {rank: report.get("log", ()) for rank, report in reports.at_work.items()}
    if not any(lines.values()):
        return []
    return nccl_log.checks_of(nccl_log.parsed([line for each in lines.values() for line in each]))
