"""SQL over a recording, for the question that no command asks. A query sees three views and nothing else."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from hypocenter.errors import HypocenterError
from hypocenter.record.reader import RecordedRun

_CLOSED = {
    "enable_external_access": "false",  # no file and no network, for reading or for writing
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",  # no look at our own Python variables
    "temp_directory": "",  # nothing is spilled to disk
}


class QueryError(HypocenterError):
    """A query that DuckDB does not accept."""

    slug = "bad-query"


def sql(run: RecordedRun, query: str) -> pa.Table:
    """Run one DuckDB query over the views `readings`, `steps` and `windows` (columns of docs/format.md, and `rank`).

    `order` is a word of SQL: write `"order"`.

    Raises:
        QueryError: the query is wrong, gives no rows to show, or wants what it may not have; with DuckDB's own words.
    """
    import duckdb

    with duckdb.connect(":memory:", config=dict(_CLOSED)) as connection:
        connection.register("readings", run.table())
        connection.register("steps", run.steps())
        connection.register("windows", run.windows())
        connection.execute("SET lock_configuration = true")
        try:
            relation: Any = connection.sql(query)  # None when there is no statement in it
            found = relation.to_arrow_table() if relation is not None else None
        except Exception as error:  # of DuckDB's tree, or of Python's for text that is no UTF-8
            raise QueryError("the query failed", where=query, why=str(error).strip(), fix=_HINT) from error
    if found is None:
        raise QueryError("the query gives no rows", where=query, why="it holds no SELECT", fix=_HINT)
    return found


_HINT = "the views are readings, steps and windows; columns: hypocenter show RUN --sql 'describe readings'"
