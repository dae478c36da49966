"""Downloads of published files: pooch checks and places them, an interrupted download is resumed.

pooch's own downloaders begin again from the first byte, and ask one address. Here a partial file is kept beside the
place, also between calls, and every address of a file is tried.
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
"""Told how many bytes of a file are there."""

pooch.get_logger().setLevel("WARNING")  # the command says what it fetches


class _TemporaryError(FetchError):
    """The next attempt may succeed."""


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
    """Fetch a file into a folder, where it appears under its name once its checksum is right.

    Args:
        file: what to fetch.
        folder: where to; made where it is missing.
        client: follows redirects.
        on_bytes: told of progress.
        first_pause_s: before the second attempt, s; later ones wait longer.

    Raises:
        FetchError: no address has it, the connection fails for good, the checksum is another, or the disk refuses.
    """
    part = folder / f".{file.name}.part"
    refused: list[str] = []

    def download(url: str, output_file: str, _pooch: Any) -> None:
        _download(url, part, client, on_bytes, first_pause_s)
        found = _sha256(part)
        part.replace(output_file)
        if found != file.sha256:
            raise FetchError(f"{url}: is another file than the one known: its SHA-256 is {found}, not {file.sha256}")

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
                return  # nothing is missing; the checksum has the last word
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
        # As it comes in, so that what is here is kept when the connection breaks.
        for block in answer.iter_raw():
            out.write(block)
            have += len(block)
            on_bytes(have)


def _sha256(path: Path) -> str:
    return str(pooch.file_hash(str(path)))
