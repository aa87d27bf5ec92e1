# Most of pyarrow is compiled, and pyarrow.compute makes its functions when it is imported: no checker can see them.
from typing import Any

def __getattr__(name: str) -> Any: ...
