"""Addresses of recordings that lie elsewhere: `s3://bucket/run`, `gs://bucket/run`, or another folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hypocenter.errors import ConfigError

_URL = re.compile(r"([a-z][a-z0-9+.-]*):/{1,2}(?=[^/])")  # a Path of an address has lost a slash
_SECRET = re.compile(r"(?i)((?:secret|token|password|signature|credential|access.?key)[^=:\s]*\s*[=:]\s*)\S+")


def is_address(path: Path | str) -> bool:
    """Return whether a path that was typed is the address of something elsewhere."""
    match = _URL.match(str(path))
    return match is not None and match[1] != "file" and not Path(path).exists()


def address_of(path: Path | str) -> str:
    """Return an address as it was typed, without a slash at its end."""
    return _URL.sub(r"\1://", str(path), count=1).rstrip("/")


def filesystem_of(address: str) -> tuple[Any, str]:
    """Return the file system of an address (fsspec's), and the path in it.

    Raises:
        ConfigError: fsspec, or what it needs for such an address, is not installed; or the address holds a password.
    """
    check_address(address)
    try:
        import fsspec
    except ImportError as error:
        raise _not_installed(address, "fsspec is not installed") from error
    try:
        filesystem, path = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise _not_installed(address, str(error)) from error
    return filesystem, str(path).rstrip("/")


def check_address(address: str) -> None:
    """Raise ConfigError where an address carries what nobody may read in a recording or a log."""
    if re.match(r"[a-z0-9+.-]+://[^/]*@", address):
        raise ConfigError(
            "an address cannot hold a user or a password",
            where=address.split("://")[0] + "://...",
            why="addresses are recorded and printed",
            fix="give credentials as the store's own tools take them: environment, profile or role",
        )


def without_secrets(text: str) -> str:
    """Return the words of an error without what looks like a secret."""
    return re.sub(r"://[^/\s]*@", "://", _SECRET.sub(r"\1...", text))


def _not_installed(address: str, why: str) -> ConfigError:
    return ConfigError(
        "such an address cannot be reached", where=address, why=why,
        fix="pip install 'hypocenter[remote]'; for gs:// also gcsfs, for hdfs:// pyarrow with libhdfs",
    )  # fmt: skip
