"""A real node for the tests of this folder, which `make node` runs; any other run leaves them out."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from joulie_lab.control_plane.node.prepared import FOLDER_VARIABLE, TIMES, folder_of

collect_ignore_glob = [] if FOLDER_VARIABLE in os.environ else ["test_*.py"]

if FOLDER_VARIABLE in os.environ:
    from support import earlier_release
    from support.real_site import ECO_W, Site
    from support.scenario_log import ScenarioLog

    LOG = ScenarioLog(Path(__file__).parents[2] / "out/evidence/real-node.json")

    if not earlier_release.is_known():
        collect_ignore_glob.append("test_7_*")

    def pytest_report_header() -> str | None:
        """Say what is left out where the clone is shallow."""
        if earlier_release.is_known():
            return None
        return f"left out: test_7_upgrade.py, for this clone lacks {earlier_release.COMMIT}; git fetch --unshallow"

    def pytest_configure(config: pytest.Config) -> None:
        """Keep what happens, for scripts/real_node_page.py."""
        config.pluginmanager.register(LOG)

    @pytest.fixture(scope="session")
    def scenario_log() -> ScenarioLog:
        """Where figures are kept."""
        return LOG

    @pytest.fixture(scope="session")
    def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
        """The cluster that all tests share, in the order of their files' names."""
        LOG.figures["preparation_s"] = json.loads((folder_of() / TIMES).read_text())
        with Site(tmp_path_factory.mktemp("site"), LOG.note) as site:
            LOG.note("control plane and node are Ready")
            yield site

    @pytest.fixture(scope="session")
    def enforced(site: Site) -> Site:
        """The release in force, the node managed, its load wanting all it can have, and in eco."""
        site.install(site.values())
        site.label_node(managed="true")
        site.await_rollout(agents=1)
        site.await_limits(ECO_W)
        return site
