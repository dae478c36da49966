"""The published datasets used by benchmarks and experiments, and their folders in the user's cache.

None of them is part of Joulie; ``datasets.yaml`` lists address and checksum of each file.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import yaml
from platformdirs import user_cache_path


class DataFile(msgspec.Struct, frozen=True):
    """A published file.

    Attributes:
        name: file name in the cache.
        urls: addresses, tried in order.
        sha256: SHA-256 of the file, hexadecimal.
        size_bytes: size of the file, bytes; None if unknown.
    """

    name: str
    urls: tuple[str, ...]
    sha256: str
    size_bytes: int | None


class Dataset(msgspec.Struct, frozen=True):
    """A published dataset.

    Attributes:
        name: name of the dataset and of its folder in the cache.
        summary: short description.
        home: publisher's page.
        licence: licence as stated there.
        files: its files.
        large: whether it is fetched only when named explicitly.
    """

    name: str
    summary: str
    home: str
    licence: str
    files: tuple[DataFile, ...]
    large: bool = False


def cache_root() -> Path:
    """Folder of all datasets in the user's cache (XDG_CACHE_HOME)."""
    return user_cache_path("joulie") / "data"


def dataset_folder(name: str) -> Path:
    """Folder of a dataset in the cache; it need not exist."""
    return cache_root() / DATASETS[name].name


def _load() -> Mapping[str, Dataset]:
    rows: list[dict[str, Any]] = yaml.safe_load(files(__package__).joinpath("datasets.yaml").read_text("utf-8"))
    datasets = [Dataset(**row | {"files": tuple(_file(**file) for file in row["files"])}) for row in rows]
    return MappingProxyType({dataset.name: dataset for dataset in datasets})


def _file(
    *,
    sha256: str,
    bytes: int | None = None,
    url: str = "",
    repository: str = "",
    commit: str = "",
    path: str = "",
    name: str = "",
) -> DataFile:
    """A file at a URL, or in a GitHub repository at a commit or on its default branch."""
    base = f"https://raw.githubusercontent.com/{repository}"
    urls = (url,) if url else (f"{base}/{commit}/{path}", f"{base}/HEAD/{path}")
    return DataFile(name or path.rpartition("/")[2], urls, sha256, bytes)


DATASETS = _load()
"""Datasets by name."""
