"""The hardware catalogue of a program, as HARDWARE_CATALOG_PATH has it."""

from __future__ import annotations

from pathlib import Path

from joulie.domain.hardware import BUILTIN_CATALOGUE, Catalogue


def catalogue_of(path: Path | None) -> Catalogue:
    """The built-in catalogue, extended by a file if one is named.

    Args:
        path: of the file.

    Raises:
        ValueError: the file cannot be used.
    """
    if path is None:
        return BUILTIN_CATALOGUE
    # Its parser is large, and not every image has what it needs.
    from joulie.adapters.hardware_yaml import load_catalogue

    return load_catalogue(path)
