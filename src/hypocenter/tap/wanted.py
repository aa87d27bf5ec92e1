"""Which sites the user asked for."""

from __future__ import annotations

from fnmatch import fnmatchcase

from hypocenter.config import Config


def is_wanted(names: tuple[str, ...], config: Config) -> bool:
    """Return whether one of a site's names matches `sites` (all when empty) and none matches `exclude`."""
    matches = not config.sites or any(fnmatchcase(name, glob) for name in names for glob in config.sites)
    return matches and not any(fnmatchcase(name, glob) for name in names for glob in config.exclude)
