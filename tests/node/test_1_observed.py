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


def test_r6_what_an_optimised_program_loads_is_compiled_in_the_image(installed: Site) -> None:
    """In a read-only file system every start would compile the rest again: 0.97 s of CPU for 0.41 s."""
    looks = (
        "import os, sys, joulie.apps.agent.main; "
        "print([name for name, module in sys.modules.items() if (file := getattr(module, '__cached__', None)) "
        "and not os.path.exists(file)])"
    )
    (pod, *_) = installed.pods("operator")
    for options in (["-OO"], []):
        words = ["exec", "--namespace", "joulie-system", pod["metadata"]["name"], "--", "python", *options, "-c", looks]
        assert installed.plane.kubectl(*words).strip() == "[]"
