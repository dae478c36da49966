"""Joulie as it was at an earlier commit: its chart, unchanged, and its programs on today's image."""

import io
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from joulie_lab.control_plane import LocalControlPlane, wait_for

COMMIT = "c3669639c9d312cd0a9df1b33d5c9ff8d541c08b"
"""Of the morning of 2026-11-23: one DaemonSet for all nodes, no modes, agents that lift caps when they are stopped."""
TAG = "earlier"

_SOURCE = Path(__file__).parents[2]
_CHART, _PROGRAMS = "deploy/helm/joulie", "packages/joulie/src"
_MOUNTED = "/opt/earlier"
# Those programs refuse the certificates of this cluster (findings, R1): what they were upgraded on had others.
_LENIENT = """\
import ssl

_strict = ssl.create_default_context


def create_default_context(*args, **kwargs):
    context = _strict(*args, **kwargs)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


ssl.create_default_context = create_default_context
"""
_PATCH = """\
Object{spec: Object.spec{
  volumes: object.spec.volumes.filter(v, has(v.hostPath) && v.hostPath.path.startsWith("/sys")).map(v,
      Object.spec.volumes{name: v.name, hostPath: Object.spec.volumes.hostPath{path: "MACHINE" + v.hostPath.path}})
    + [Object.spec.volumes{name: "earlier", hostPath: Object.spec.volumes.hostPath{path: "PROGRAMS"}}],
  containers: object.spec.containers.map(c, Object.spec.containers{
    name: c.name,
    env: [Object.spec.containers.env{name: "PYTHONPATH", value: "MOUNTED"}],
    volumeMounts: [Object.spec.containers.volumeMounts{name: "earlier", mountPath: "MOUNTED", readOnly: true}]})
}}
"""


def is_known() -> bool:
    """Whether this clone of the repository holds the commit; a shallow one does not."""
    return _git("cat-file", "-e", COMMIT).returncode == 0


def unpack(folder: Path) -> Path:
    """Write chart and programs to `folder`; return the chart's."""
    archive = _git("archive", "--format=tar", COMMIT, _CHART, _PROGRAMS)
    archive.check_returncode()
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as content:
        content.extractall(folder, filter="data")
    (folder / _PROGRAMS / "sitecustomize.py").write_text(_LENIENT)
    return folder / _CHART


@contextmanager
def running(plane: LocalControlPlane, folder: Path, machine: Path) -> Iterator[None]:
    """While the block runs, pods whose image has the tag `TAG` get the programs in `folder`, and the machine as host.

    That chart has no values for host paths, so an admission policy gives its agent the modelled machine's.
    """
    expression = _PATCH
    for name, value in (("MACHINE", machine), ("PROGRAMS", folder / _PROGRAMS), ("MOUNTED", _MOUNTED)):
        expression = expression.replace(name, str(value))
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": TAG},
        "spec": {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "matchConstraints": {
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
                ]
            },
            "matchConditions": [
                {"name": TAG, "expression": f"object.spec.containers.exists(c, c.image.endsWith(':{TAG}'))"}
            ],
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}],
        },
    }
    binding = {
        "apiVersion": policy["apiVersion"],
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": policy["metadata"],
        "spec": {"policyName": TAG},
    }
    objects = yaml.safe_dump_all([policy, binding])
    plane.kubectl("apply", "-f", "-", input=objects)
    wait_for(lambda: _is_in_force(plane), 60.0, "the admission policy is in force")
    yield
    plane.kubectl("delete", "-f", "-", input=objects)


def _is_in_force(plane: LocalControlPlane) -> bool:
    words = ("run", "probe", f"--image=probe:{TAG}", "--dry-run=server", "-o", "jsonpath={.spec.containers[0].env}")
    return _MOUNTED in plane.kubectl(*words)


def _git(*words: str) -> subprocess.CompletedProcess[bytes]:
    # Root may run the tests in another user's clone.
    command = ["git", "-c", "safe.directory=*", "-C", str(_SOURCE), *words]
    return subprocess.run(command, capture_output=True, check=False)
