"""What the ranks brought along: their own checks, and settings that should be equal everywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from hypocenter.doctor.answer import Check
from hypocenter.doctor.over_ranks.reports import Reports

order = 10  # in which judges are asked


def judge(reports: Reports) -> list[Check]:
    """Return the checks of each host once, and the settings compared between ranks."""
    return [*_own(reports), *_settings(reports)]


def _own(reports: Reports) -> list[Check]:
    found: list[Check] = []
    seen: set[tuple[str, str, str, str]] = set()
    for rank in sorted(reports.of):
        for check in msgspec.convert(reports.of[rank].get("own", ()), list[Check]):
            host = check.host or reports.host(rank)
            mark = (host, check.code, check.status, check.what)
            if mark not in seen:
                seen.add(mark)
                found.append(replace(check, host=host))
    return found


def _settings(reports: Reports) -> list[Check]:
    snapshots: dict[int, Any] = {r: report["settings"] for r, report in reports.of.items() if report.get("settings")}
    if len(snapshots) < 2:
        return []
    from hypocenter.doctor import settings  # the reader of what `settings.snapshot` made

    return list(settings.compare(snapshots))
