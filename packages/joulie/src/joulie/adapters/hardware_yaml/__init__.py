"""The hardware catalogue: built in, and extended by a YAML file."""

from __future__ import annotations

from pathlib import Path

from joulie.domain.hardware import BUILTIN_CATALOGUE, Catalogue


def catalogue_of(path: Path | None) -> Catalogue:
    """The built-in catalogue, extended by a file if one is named.

    Raises:
        ValueError: the file cannot be used.
    """
    if path is None:
        return BUILTIN_CATALOGUE
    # Its parser is large, and the agent rarely needs it.
    from joulie.adapters.hardware_yaml.models import load_catalogue

    return load_catalogue(path)
