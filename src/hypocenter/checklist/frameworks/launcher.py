"""How many ranks a launcher starts."""

from __future__ import annotations

from hypocenter.checklist.file_entries import FileEntries, framework
from hypocenter.checklist.words import number

_PER_NODE = ("nproc_per_node", "num_gpus", "ntasks_per_node")
_NODES = ("nnodes", "num_nodes")
_ALL = ("num_processes", "worker_num", "ntasks", "np", "n")


@framework("launcher")
def settle(sheet: FileEntries) -> None:
    """World size: processes of a node times nodes, or all of them at once."""
    for key in _ALL:
        if sheet.has(key) and (isinstance(number(sheet.value(key)), int) or not sheet.says(key)):
            sheet.set("parallel.world_size", sheet.value(key), key)
            return
    node = next((key for key in _PER_NODE if sheet.has(key)), None)
    if node is None:
        return
    nodes = next((key for key in _NODES if sheet.has(key)), None)
    keys = (node, nodes) if nodes else (node,)
    per_node, n = number(sheet.value(node)), number(sheet.value(nodes)) if nodes else 1
    if isinstance(per_node, int) and isinstance(n, int):
        sheet.set("parallel.world_size", per_node * n, *keys, derived=" * ".join(keys))
    elif isinstance(per_node, str) or isinstance(n, str):
        sheet.note(f"{node} is {per_node!r} on {n!r} nodes: how many ranks that is cannot be told")
