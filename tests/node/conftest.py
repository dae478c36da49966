"""A real node for the tests of this folder, which `make node` runs; any other run leaves them out."""

import os
from collections.abc import Iterator

import pytest

from joulie_lab.control_plane.node.prepared import FOLDER_VARIABLE

collect_ignore_glob = [] if FOLDER_VARIABLE in os.environ else ["test_*.py"]

if FOLDER_VARIABLE in os.environ:
    from support.real_site import Site

    @pytest.fixture(scope="session")
    def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
        """The cluster that all tests share, in the order of their files' names."""
        with Site(tmp_path_factory.mktemp("site")) as site:
            yield site
