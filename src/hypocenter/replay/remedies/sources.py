"""Where a module's forward is written, for the change that a person will make there."""

from __future__ import annotations

import inspect

from torch import nn

from hypocenter.nouns import Source
from hypocenter.replay.remedies.layer import Layer


def forward_source(module: nn.Module) -> Source | None:
    """File and first line of the forward (its first decorator, if any); None for code that is in no file."""
    function = vars(module).get("forward")
    while isinstance(function, Layer):
        function = function.inner
    function = inspect.unwrap(function if function is not None else type(module).forward)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None or code.co_filename.startswith("<"):
        return None
    return Source(file=code.co_filename, line=code.co_firstlineno, function=code.co_name)
