"""The tools of a control plane and their pinned versions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
CACHE_VARIABLE = "JOULIE_CONTROL_PLANE_DIR"

STAGES = "kwok-stages"
"""Name of the folder of KWOK's stages, which define the state transitions of simulated nodes and pods."""


class BinariesError(RuntimeError):
    """A program of the control plane is not available; the message says why and what to do."""


@dataclass(frozen=True)
class Tool:
    """A Go module and its artefacts; its go.mod and go.sum are packaged under modules/NAME.

    Attributes:
        name: name of the tool and of the folder of its go.mod.
        module: module path.
        version: module version, as in go.mod.
        artefacts: names of the artefacts built from it.
        version_symbols: Go variables that contain the program's version, with their values.
        cold_build_s: approximate duration of a first build on two cores, s.
        download_mb: approximate size of its official build, MB; 0 if none is downloaded.
    """

    name: str
    module: str
    version: str
    artefacts: tuple[str, ...]
    version_symbols: tuple[tuple[str, str], ...]
    cold_build_s: int
    download_mb: int = 0


_KUBERNETES_VERSION = (
    ("k8s.io/component-base/version.gitVersion", "v1.36.3"),
    ("k8s.io/component-base/version.gitMajor", "1"),
    ("k8s.io/component-base/version.gitMinor", "36"),
    ("k8s.io/client-go/pkg/version.gitVersion", "v1.36.3"),  # their names in the User-Agent
)

TOOLS = (
    Tool(
        "kubernetes",
        "k8s.io/kubernetes",
        "v1.36.3",
        ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"),
        _KUBERNETES_VERSION,
        400,
        330,
    ),
    Tool("etcd", "go.etcd.io/etcd/server/v3", "v3.6.8", ("etcd",), (), 20, 25),
    Tool("kwok", "sigs.k8s.io/kwok", "v0.8.0", ("kwok", STAGES), (), 60),
    Tool(
        "helm",
        "helm.sh/helm/v4",
        "v4.3.1",
        ("helm",),
        (("helm.sh/helm/v4/internal/version.version", "v4.3.1"),),
        90,
        20,
    ),
)

NODE_TOOLS = (
    Tool("kubelet", "k8s.io/kubernetes", "v1.36.3", ("kube-proxy", "kubelet"), _KUBERNETES_VERSION, 180, 110),
)
"""What runs a node, beside the control plane."""

Report = Callable[[str], None]
"""Called with each line of progress."""
