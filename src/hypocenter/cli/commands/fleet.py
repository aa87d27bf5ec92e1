"""`hypocenter fleet`: which devices were accused, and by how many recordings."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from hypocenter.cli.answer_format import format_option, print_answer
from hypocenter.cli.say import say
from hypocenter.diagnose.fleet import Device, Fleet, answer
from hypocenter.record.layout import RUNS_FOLDER
from hypocenter.report import wording
from hypocenter.report.columns import aligned
from hypocenter.report.screen import write

EXIT = {"none": 0, "once": 0, "again": 1}


@click.command("fleet")
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@format_option()
def command(folder: Path | None, format_name: str) -> int:
    """Say what all recordings below FOLDER (./runs if none is given) found about each device.

    A device is known by its serial number, or else by host and place. Listed are those whose hardware was found at
    fault, and those that two recordings name because a rank was lost or a sum was wrong.

    Exit code: 0 no device was found at fault by two recordings, 1 one was, 4 there is no recording.
    """
    found = answer(folder or Path(RUNS_FOLDER))
    if format_name == "terminal":
        write(sys.stdout, "".join(f"{line}\n" for line in _lines(found)))
    else:
        print_answer("fleet", found, format_name)
    for path in found.not_checked:
        say(f"note: not looked at yet: {wording.command('check', path)}")
    for note in found.notes:
        say(f"note: {note}")
    return EXIT[found.status]


def _lines(fleet: Fleet) -> Iterator[str]:
    for device in fleet.devices:
        of = wording.count(device.n_runs, "recording")
        yield f"{_name(device)}: at fault in {device.n_accused}, named in {device.n_named} of {of}"
        rows = [
            (f"  {each.started[:16].replace('T', ' ')}", wording.clean(each.run), f"step {each.step}",
             f"rank {each.rank}", f"{each.code} {wording.clean(each.title)} ({each.confidence})")
            for each in device.named
        ]  # fmt: skip
        yield from aligned(rows)
    n = wording.count(len(fleet.devices), "device")
    yield f"{n} of {fleet.n_devices:,} to look at, in {wording.count(fleet.n_runs, 'recording')}"


def _name(device: Device) -> str:
    return wording.clean(" ".join(filter(None, (device.serial, *device.hosts, device.device, device.device_name))))
