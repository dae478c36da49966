"""The published data sets that benchmarks and experiments use, and their folders in the user's cache.

None of them is part of Joulie; ``datasets.yaml`` says where each file is, and what its checksum is.
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
        name: in the cache.
        urls: where it is; the first that has it counts.
        sha256: of the file, hexadecimal.
        size_bytes: of the file; None where its home does not say to the byte.
    """

    name: str
    urls: tuple[str, ...]
    sha256: str
    size_bytes: int | None


class Dataset(msgspec.Struct, frozen=True):
    """Files that belong together.

    Attributes:
        name: of it, and of its folder in the cache.
        summary: what it is.
        home: who publishes it.
        licence: as its home states it.
        files: of it.
        large: fetched only when it is named.
    """

    name: str
    summary: str
    home: str
    licence: str
    files: tuple[DataFile, ...]
    large: bool = False


def cache_root() -> Path:
    """The folder of all datasets, in the user's cache (XDG_CACHE_HOME)."""
    return user_cache_path("joulie") / "data"


def dataset_folder(name: str) -> Path:
    """The folder of a dataset in the cache, whether it was fetched or not."""
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
    """A file at a URL, or of a GitHub repository: at a commit, else on its default branch."""
    base = f"https://raw.githubusercontent.com/{repository}"
    urls = (url,) if url else (f"{base}/{commit}/{path}", f"{base}/HEAD/{path}")
    return DataFile(name or path.rpartition("/")[2], urls, sha256, bytes)


DATASETS = _load()
"""The datasets by name."""
