"""CSV, for whatever reads nothing else."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator

import pyarrow as pa

from hypocenter.exporting.catalogue import Export, exporter
from hypocenter.exporting.tables import SCHEMAS, parts

_ROWS = 4096  # that are text at a time


@exporter("csv")
def write(export: Export) -> None:
    """A folder of readings.csv, steps.csv and findings.csv; lists are JSON, what is not known is empty."""
    export.out.mkdir()
    for name, schema in SCHEMAS.items():
        with (export.out / f"{name}.csv").open("w", encoding="utf-8", errors="replace", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(schema.names)
            for part in parts(export.recording, export.diagnosis, name):
                writer.writerows(_rows(part))
    export.notes.append("text of your program stands in these files as it is: a spreadsheet may take = for a formula")


def _rows(table: pa.Table) -> Iterator[tuple[object, ...]]:
    for batch in table.to_batches(max_chunksize=_ROWS):
        columns = [map(_cell, column.to_pylist()) for column in batch.columns]
        yield from zip(*columns, strict=True)


def _cell(value: object) -> object:
    return json.dumps(value) if isinstance(value, list) else value
