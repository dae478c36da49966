"""Downloads published files with pooch, which verifies checksums; interrupted downloads are resumed.

pooch's own downloaders restart from the first byte and support one address. Here a partial file is kept beside the
target, even between calls, and all addresses of a file are tried.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx2
import pooch
import stamina

from joulie_lab.adapters.published.datasets import DataFile
from joulie_lab.adapters.published.errors import FetchError

_TIMEOUT_S = 30.0
_ATTEMPTS = 5
_FIRST_PAUSE_S = 1.0
_RETRIED = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})

OnBytes = Callable[[int], None]
"""Called with the number of bytes downloaded so far."""

pooch.get_logger().setLevel("WARNING")  # the command reports what it fetches


class _TemporaryError(FetchError):
    """Transient failure; a retry may succeed."""


def is_complete(file: DataFile, folder: Path) -> bool:
    """Whether the file exists and has the published checksum.

    Raises:
        FetchError: the file cannot be read.
    """
    place = folder / file.name
    try:
        return place.is_file() and _sha256(place) == file.sha256
    except OSError as error:
        raise FetchError(f"{place}: cannot be read: {error.strerror}") from error


def fetch(
    file: DataFile, folder: Path, client: httpx2.Client, on_bytes: OnBytes, first_pause_s: float = _FIRST_PAUSE_S
) -> Path:
    """Fetch a file into a folder; it gets its final name after its checksum is verified.

    Args:
        file: the file to fetch.
        folder: target folder; created if missing.
        client: HTTP client that follows redirects.
        on_bytes: called with the download progress.
        first_pause_s: pause before the second attempt, s; later pauses are longer.

    Raises:
        FetchError: no address has the file, all retries failed, the checksum differs, or the file cannot be written.
    """
    part = folder / f".{file.name}.part"
    refused: list[str] = []

    def download(url: str, output_file: str, _pooch: Any) -> None:
        _download(url, part, client, on_bytes, first_pause_s)
        found = _sha256(part)
        part.replace(output_file)
        if found != file.sha256:
            raise FetchError(f"{url}: checksum mismatch: SHA-256 is {found}, expected {file.sha256}")

    try:
        for url in file.urls:
            try:
                return Path(pooch.retrieve(url, f"sha256:{file.sha256}", file.name, folder, downloader=download))
            except _TemporaryError:
                raise
            except FetchError as error:
                refused.append(str(error))
    except OSError as error:
        raise FetchError(f"{folder / file.name}: cannot be written: {error.strerror}") from error
    raise FetchError("\n".join(refused))


def _download(url: str, part: Path, client: httpx2.Client, on_bytes: OnBytes, first_pause_s: float) -> None:
    for attempt in stamina.retry_context(
        on=_TemporaryError, attempts=_ATTEMPTS, timeout=None, wait_initial=first_pause_s, wait_max=10.0 * first_pause_s
    ):
        with attempt:
            _download_once(url, part, client, on_bytes)


def _download_once(url: str, part: Path, client: httpx2.Client, on_bytes: OnBytes) -> None:
    have = part.stat().st_size if part.exists() else 0
    headers = {"accept-encoding": "identity"} | ({"range": f"bytes={have}-"} if have else {})
    try:
        with client.stream("GET", url, headers=headers, timeout=_TIMEOUT_S) as answer:
            if answer.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return  # the file is complete; the checksum is verified afterwards
            if answer.status_code in _RETRIED or answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise _TemporaryError(f"{url}: answered {answer.status_code}")
            if answer.status_code not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
                raise FetchError(f"{url}: answered {answer.status_code} {answer.reason_phrase}".rstrip())
            resumed = answer.status_code == HTTPStatus.PARTIAL_CONTENT
            _save(answer, part, have if resumed else 0, on_bytes)
    except httpx2.TransportError as error:
        raise _TemporaryError(f"{url}: {type(error).__name__}: {error}") from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise FetchError(f"{url}: {error}") from error


def _save(answer: httpx2.Response, part: Path, have: int, on_bytes: OnBytes) -> None:
    with part.open("ab" if have else "wb") as out:
        on_bytes(have)
        # Written as it arrives, so that partial data is kept if the connection breaks.
        for block in answer.iter_raw():
            out.write(block)
            have += len(block)
            on_bytes(have)


def _sha256(path: Path) -> str:
    return str(pooch.file_hash(str(path)))
