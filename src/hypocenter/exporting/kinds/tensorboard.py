"""Event files of TensorBoard."""

from __future__ import annotations

from hypocenter.exporting.catalogue import Export, exporter
from hypocenter.exporting.timeline import NO_TIME_NS, spans_of
from hypocenter.record.event_file import EventFile
from hypocenter.record.finding_text import markdown
from hypocenter.record.schema import readings_from


@exporter("tensorboard")
def write(export: Export) -> None:
    """A folder for tensorboard --logdir: a run for each rank, with scalars, histograms and findings as text."""
    recording = export.recording
    export.out.mkdir()
    for rank in recording.ranks:
        spans = spans_of(recording, rank)
        when_s = {span.record.step: span.end_ns / 1e9 for span in spans}
        began_s = spans[0].begin_ns / 1e9 if spans else NO_TIME_NS / 1e9
        file = EventFile(export.out / f"rank-{rank:05d}", wall_time_s=began_s)
        for span in spans:
            file.step(span.record, wall_time_s=span.end_ns / 1e9)
        for _, table in recording.scan(ranks=[rank]):
            for reading in readings_from(table):
                file.readings([reading], wall_time_s=when_s.get(reading.step, began_s))
        for finding in export.diagnosis.findings:
            if finding.rank == rank:
                file.finding(finding, markdown(finding), wall_time_s=when_s.get(finding.step, began_s))
        file.close()
    export.notes.append(
        "wall times are those of steps one after the other: a recording holds how long each took, not when"
    )
