"""Parquet, for pandas, polars, DuckDB and Spark."""

from __future__ import annotations

from hypocenter.exporting.catalogue import Export, exporter
from hypocenter.exporting.tables import SCHEMAS, parts


@exporter("parquet")
def write(export: Export) -> None:
    """A folder of readings.parquet, steps.parquet and findings.parquet, all ranks in each."""
    import pyarrow.parquet as pq

    export.out.mkdir()
    for name, schema in SCHEMAS.items():
        with pq.ParquetWriter(export.out / f"{name}.parquet", schema, compression="zstd") as writer:
            for part in parts(export.recording, export.diagnosis, name):
                writer.write_table(part)
