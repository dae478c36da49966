"""The chart as the README installs it: every pod becomes Ready under its security context, RBAC and probes."""

import pytest

from support.real_site import Site


@pytest.fixture(scope="module")
def installed(site: Site) -> Site:
    site.install(site.values())
    return site


def test_r1_every_pod_becomes_ready(installed: Site) -> None:
    components = {pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in installed.pods()}
    assert components == {"operator", "extender"}
