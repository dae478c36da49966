"""Public data that benchmarks and experiments use: where each file is published, and its way into the user's cache.

None of it is part of Joulie. A file is complete in the cache, with the checksum that is known here, or it is not there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType

import httpx2
import stamina
from platformdirs import user_cache_path

_TIMEOUT_S = 30.0
_ATTEMPTS = 5
_FIRST_PAUSE_S = 1.0
_LATER = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})

OnBytes = Callable[[int], None]
"""Told how many bytes of a file are there."""


class FetchError(ValueError):
    """A file that could not be had; the message says which and why."""


class _TemporaryError(FetchError):
    """The next attempt may do better."""


@dataclass(frozen=True)
class DataFile:
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


@dataclass(frozen=True)
class Dataset:
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


def is_complete(file: DataFile, folder: Path) -> bool:
    """Whether the file is there as it was published.

    Raises:
        FetchError: it cannot be read.
    """
    place = folder / file.name
    try:
        return place.is_file() and _sha256(place) == file.sha256
    except OSError as error:
        raise FetchError(f"{place}: cannot be read: {error.strerror}") from error


def fetch(
    file: DataFile, folder: Path, client: httpx2.Client, on_bytes: OnBytes, first_pause_s: float = _FIRST_PAUSE_S
) -> Path:
    """Bring a file into a folder.

    A download that was broken off goes on where it stopped, also in a later call. The file appears under its name once
    its checksum is right.

    Args:
        file: what to bring.
        folder: where to; made where it is missing.
        client: follows redirects.
        on_bytes: told of progress.
        first_pause_s: before the second attempt, s; later ones wait longer.

    Raises:
        FetchError: no address has it, the connection fails for good, the checksum is another, or the disk refuses.
    """
    place = folder / file.name
    part = folder / f".{file.name}.part"
    refused: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for url in file.urls:
            try:
                _download(url, part, client, on_bytes, first_pause_s)
                _check(url, part, file)
            except _TemporaryError:
                raise
            except FetchError as error:
                refused.append(str(error))
                continue
            part.replace(place)
            return place
    except OSError as error:
        raise FetchError(f"{place}: cannot be written: {error.strerror}") from error
    raise FetchError("\n".join(refused))


def _download(url: str, part: Path, client: httpx2.Client, on_bytes: OnBytes, first_pause_s: float) -> None:
    for attempt in stamina.retry_context(
        on=_TemporaryError, attempts=_ATTEMPTS, timeout=None, wait_initial=first_pause_s, wait_max=10.0 * first_pause_s
    ):
        with attempt:
            _download_once(url, part, client, on_bytes)


def _download_once(url: str, part: Path, client: httpx2.Client, on_bytes: OnBytes) -> None:
    have = part.stat().st_size if part.exists() else 0
    headers = {"range": f"bytes={have}-", "accept-encoding": "identity"} if have else {"accept-encoding": "identity"}
    try:
        with client.stream("GET", url, headers=headers, timeout=_TIMEOUT_S) as answer:
            if answer.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return  # nothing is missing; the checksum has the last word
            if answer.status_code in _LATER or answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise _TemporaryError(f"{url}: answered {answer.status_code}")
            if answer.status_code not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
                raise FetchError(f"{url}: answered {answer.status_code} {answer.reason_phrase}".rstrip())
            goes_on = answer.status_code == HTTPStatus.PARTIAL_CONTENT
            _save(answer, part, have if goes_on else 0, on_bytes)
    except httpx2.TransportError as error:
        raise _TemporaryError(f"{url}: {type(error).__name__}: {error}") from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise FetchError(f"{url}: {error}") from error


def _save(answer: httpx2.Response, part: Path, have: int, on_bytes: OnBytes) -> None:
    with part.open("ab" if have else "wb") as out:
        on_bytes(have)
        # As it comes in, so that what is here is kept when the connection breaks.
        for block in answer.iter_raw():
            out.write(block)
            have += len(block)
            on_bytes(have)


def _check(url: str, part: Path, file: DataFile) -> None:
    found = _sha256(part)
    if found != file.sha256:
        part.unlink()
        raise FetchError(f"{url}: is another file than the one known: its SHA-256 is {found}, not {file.sha256}")


def _sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _github(repository: str, commit: str, path: str, sha256: str, size_bytes: int) -> DataFile:
    """A file at a commit, else on its default branch: the checksum says whether that is the same."""
    base = f"https://raw.githubusercontent.com/{repository}"
    urls = (f"{base}/{commit}/{path}", f"{base}/HEAD/{path}")
    return DataFile(path.rpartition("/")[2], urls, sha256, size_bytes)


_ALIBABA = "alibaba/clusterdata"
_ALIBABA_TERMS = "no licence stated; for research, with the authors' papers cited"
_OPENB = "cluster-trace-gpu-v2023/csv"
_PAI_TABLES = "https://aliopentrace.oss-cn-beijing.aliyuncs.com/v2020GPUTraces"
_ZEUS = "ml-energy/zeus"
_ZEUS_TRACE = "examples/research_reproducibility/zeus_nsdi23/trace"
_WAIT = "dos-group/lets-wait-awhile"
_WAIT_COMMIT = "6f58b9e925f6ee87ec7ef14ffad2ae4ba769e981"
_POTENTIAL = "umassos/decarbonization-potential"
_POTENTIAL_COMMIT = "577b4a58300ff1a11571158c0c56bd55dc72adf3"

DATASETS: Mapping[str, Dataset] = MappingProxyType(
    {
        dataset.name: dataset
        for dataset in (
            Dataset(
                "openb",
                "pods and nodes of a cluster that shares GPUs, Alibaba 2023",
                "github.com/alibaba/clusterdata, cluster-trace-gpu-v2023",
                _ALIBABA_TERMS,
                (
                    _github(
                        _ALIBABA,
                        "50a91c7c74abe3b658188dc78ac1dd302970d40c",
                        f"{_OPENB}/openb_pod_list_default.csv",
                        "1ee7ed79c27a3b0861cda8ddba86a004c6aba904caafa329a76ae93ca63834a8",
                        575_468,
                    ),
                    _github(
                        _ALIBABA,
                        "50a91c7c74abe3b658188dc78ac1dd302970d40c",
                        f"{_OPENB}/openb_node_list_gpu_node.csv",
                        "2beca64b4d3dfa342036a34b56a495c6cef9225db836c81f541282cb1df320b5",
                        42_353,
                    ),
                ),
            ),
            Dataset(
                "jobs",
                "100,000 jobs of Alibaba's PAI trace over a year",
                "github.com/umassos/GAIA",
                "MIT",
                (
                    _github(
                        "umassos/GAIA",
                        "fa4d11def9e1d0efef27b1e8941a8fae432d3325",
                        "src/cluster_traces/pai-100k.csv",
                        "b2325599b3b3ac19dcf7377f2452633f9c02cd0e4a8f1e0cf553f63b68558a2d",
                        3_738_595,
                    ),
                ),
            ),
            Dataset(
                "gpu_power",
                "time and power of training by power limit, A40 and P100",
                "github.com/ml-energy/zeus",
                "Apache-2.0",
                (
                    _github(
                        _ZEUS,
                        "048db45d828bc928549e85c3eb9bbfdf683b8b11",
                        f"{_ZEUS_TRACE}/summary_power_a40.csv",
                        "f4ec111fc9b06b353182faab9160ecb1236a486b2741ed93383b80497332031e",
                        29_641,
                    ),
                    _github(
                        _ZEUS,
                        "3db0d49b9cdb39103b07ed647bd12bdd0717e2a0",
                        f"{_ZEUS_TRACE}/summary_power_p100.csv",
                        "158e9a6784b6e2d26710529b132cf173b227dc8688f4931c19a637bce2b7503b",
                        18_163,
                    ),
                ),
            ),
            Dataset(
                "specpower",
                "SPECpower_ssj2008 results: power at full load and idle",
                "github.com/cloud-carbon-footprint/ccf-coefficients",
                "Apache-2.0",
                (
                    _github(
                        "cloud-carbon-footprint/ccf-coefficients",
                        "b0032d928c787cf76cecd7d1d611c5b46f366e29",
                        "data/SPECpower-2026-03-09.csv",
                        "c19bd829f2753765ba4cc5b8d723f41c76a8a9afc54ad5444caf3a06e66a4c11",
                        176_640,
                    ),
                ),
            ),
            Dataset(
                "carbon",
                "carbon intensity of electricity: Germany, Great Britain 2020, California, Spain 2021-2022",
                "github.com/dos-group/lets-wait-awhile, github.com/umassos/decarbonization-potential",
                "none stated (Germany, Great Britain); ODbL, data of Electricity Maps (California, Spain)",
                (
                    _github(
                        _WAIT,
                        _WAIT_COMMIT,
                        "data/ger_ci.csv",
                        "bb9aa67ed4ce191d8fa0d48346c0c6c0fa8fe82f8e4c94e7cf1c8156c7fb001c",
                        1_428_284,
                    ),
                    _github(
                        _WAIT,
                        _WAIT_COMMIT,
                        "data/gb_ci.csv",
                        "5c771b6d31c6082343e0d9e3a3fc03d05defb6f4cdcc525a374a26ec337a86ac",
                        848_162,
                    ),
                    _github(
                        _POTENTIAL,
                        _POTENTIAL_COMMIT,
                        "downloaded_carbon_data/ES_2021_hourly.csv",
                        "87068203fe06b43934dc41b4fd4b4808bdaec40fff8176db14a974ad97bc090f",
                        685_408,
                    ),
                    _github(
                        _POTENTIAL,
                        _POTENTIAL_COMMIT,
                        "downloaded_carbon_data/US-CAL-CISO_2021_hourly.csv",
                        "666e41276fb5cd75fac81d8391cdf009d14f1e0f31e68b350efc0bc0a5c6387c",
                        1_038_875,
                    ),
                    _github(
                        _POTENTIAL,
                        _POTENTIAL_COMMIT,
                        "downloaded_carbon_data/US-CAL-CISO_2022_hourly.csv",
                        "82dd6d2d743cfc39b55c35ffbd63ac9c6b55a7367bb8fb2bdba3d071ce4ba33f",
                        1_038_581,
                    ),
                ),
            ),
            Dataset(
                "pai",
                "tables of Alibaba's PAI trace of 2020: tasks and jobs",
                "github.com/alibaba/clusterdata, cluster-trace-gpu-v2020",
                _ALIBABA_TERMS,
                (
                    DataFile(
                        "pai_task_table.tar.gz",
                        (f"{_PAI_TABLES}/pai_task_table.tar.gz",),
                        "cd1d6dc3215d2a8607ccf6b6dd952b5db776df86926c73259fea7c1499ac40e5",
                        None,
                    ),
                    DataFile(
                        "pai_job_table.tar.gz",
                        (f"{_PAI_TABLES}/pai_job_table.tar.gz",),
                        "5aad7f7caac501136d14ed6a48e40546f825d7b0617a3a4f337e2348fe0a6cb0",
                        None,
                    ),
                ),
                large=True,
            ),
            Dataset(
                "philly",
                "training jobs of Microsoft's Philly clusters, 2017",
                "github.com/msr-fiddle/philly-traces",
                "provided as is, with the authors' paper cited",
                (
                    DataFile(
                        "trace-data.tar.gz",
                        ("https://github.com/msr-fiddle/philly-traces/raw/HEAD/trace-data.tar.gz",),
                        "2037ccf63a725a02be718b0e1aeee6142c90b7f62d0d849295120e9f6ba13d2c",
                        1_055_988_361,
                    ),
                ),
                large=True,
            ),
        )
    }
)
"""The datasets by name."""
