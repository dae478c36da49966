"""Fetching of published files: whole and right, or not at all."""

import asyncio
import hashlib
import json

import httpx2
import pytest

from joulie.apps.cli.main import main
from joulie_lab.adapters.published.datasets import DATASETS, DataFile, dataset_folder
from joulie_lab.adapters.published.download import fetch, is_complete
from joulie_lab.adapters.published.errors import FetchError
from support.scripted_server import serving

CONTENT = b"sn,gpu\n" + b"node,8\n" * 1000
HALF = len(CONTENT) // 2


class Home:
    """Serves `CONTENT`; the first answers may be spoilt."""

    def __init__(self, *spoilt):
        self.spoilt = list(spoilt)
        self.asked = []

    async def handle(self, request, answer):
        first = request.headers.get("range", "bytes=0-")
        self.asked.append((request.path, first))
        start = int(first.removeprefix("bytes=").removesuffix("-"))
        how = self.spoilt.pop(0) if self.spoilt else "whole"
        if request.path == "/gone":
            await answer.whole(404)
        elif how == "busy":
            await answer.whole(503)
        elif how == "broken off":
            await answer.begin()
            await answer.chunk(CONTENT[start : start + HALF])
            answer.finish()
        elif how == "no ranges" or start == 0:
            await answer.whole(200, CONTENT)
        elif start >= len(CONTENT):
            await answer.whole(416)
        else:
            await answer.whole(206, CONTENT[start:])


def fetched(home, folder, paths=("/nodes.csv",), content=CONTENT):
    """Fetch from a server that behaves like `home`; the progress that was told."""
    told = []

    async def talk():
        async with serving(home.handle) as url:
            sha256 = hashlib.sha256(content).hexdigest()
            file = DataFile("nodes.csv", tuple(url + path for path in paths), sha256, len(content))

            def run():
                with httpx2.Client() as client:
                    fetch(file, folder, client, told.append, first_pause_s=0.001)

            await asyncio.to_thread(run)
            assert is_complete(file, folder)

    asyncio.run(talk())
    return told


def test_a_file_comes_whole_and_its_progress_is_told(tmp_path):
    told = fetched(Home(), tmp_path / "openb")
    assert (tmp_path / "openb" / "nodes.csv").read_bytes() == CONTENT
    assert told[0] == 0
    assert told[-1] == len(CONTENT)


@pytest.mark.parametrize("later", ["whole", "busy", "no ranges"])
def test_a_download_that_breaks_off_goes_on_where_it_stopped(tmp_path, later):
    home = Home("broken off", later)
    fetched(home, tmp_path)
    assert (tmp_path / "nodes.csv").read_bytes() == CONTENT
    assert {first for _, first in home.asked[1:]} == {f"bytes={HALF}-"}
    assert [path.name for path in tmp_path.iterdir()] == ["nodes.csv"]


def test_a_later_call_goes_on_too(tmp_path):
    (tmp_path / ".nodes.csv.part").write_bytes(CONTENT[:HALF])
    home = Home()
    fetched(home, tmp_path)
    assert home.asked == [("/nodes.csv", f"bytes={HALF}-")]


def test_what_was_whole_already_is_only_checked(tmp_path):
    (tmp_path / ".nodes.csv.part").write_bytes(CONTENT)
    fetched(Home(), tmp_path)
    assert (tmp_path / "nodes.csv").read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing_behind(tmp_path):
    with pytest.raises(FetchError, match=r"SHA-256 is [0-9a-f]{64}, expected [0-9a-f]{64}"):
        fetched(Home(), tmp_path, content=b"something else")
    assert not list(tmp_path.iterdir())


def test_the_next_address_is_tried_and_all_refusals_are_named(tmp_path):
    home = Home()
    fetched(home, tmp_path, paths=("/gone", "/nodes.csv"))
    assert [path for path, _ in home.asked] == ["/gone", "/nodes.csv"]
    with pytest.raises(FetchError, match=r"/gone: answered 404.*\n.*/gone: answered 404"):
        fetched(Home(), tmp_path / "empty", paths=("/gone", "/gone"))


def test_a_home_that_stays_busy_is_given_up(tmp_path):
    home = Home(*["busy"] * 9)
    with pytest.raises(FetchError, match=r"/nodes\.csv: answered 503"):
        fetched(home, tmp_path)
    assert len(home.asked) == 5


def test_every_dataset_can_be_told_apart_and_checked():
    for name, dataset in DATASETS.items():
        assert dataset.name == name
        assert dataset.licence
        assert len({file.name for file in dataset.files}) == len(dataset.files)
        for file in dataset.files:
            assert len(bytes.fromhex(file.sha256)) == 32
            assert all(url.startswith("https://") for url in file.urls)


def test_the_command_says_what_is_missing_and_fetches_only_that(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert dataset_folder("openb") == tmp_path / "joulie" / "data" / "openb"
    file = DataFile("nodes.csv", ("https://127.0.0.1:1/nodes.csv",), hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))
    dataset = DATASETS["openb"]
    monkeypatch.setattr(
        "joulie_lab.adapters.published.datasets.DATASETS",
        {"openb": type(dataset)("openb", "nodes", "a home", "MIT", (file,))},
    )

    def command(*arguments):
        with pytest.raises(SystemExit) as left:
            main(["bench", "fetch", *arguments, "-o", "json"])
        streams = capsys.readouterr()
        return left.value.code, streams.out and json.loads(streams.out)[0]["files"][0]["complete"], streams.err

    assert command("--list") == (0, False, "")
    (tmp_path / "joulie" / "data" / "openb").mkdir(parents=True)
    (tmp_path / "joulie" / "data" / "openb" / "nodes.csv").write_bytes(CONTENT)
    assert command() == (0, True, "openb: a home; licence: MIT\n")
    code, _, said = command("nothing")
    assert code == 2
    assert "unknown dataset 'nothing'; use one of openb" in said
