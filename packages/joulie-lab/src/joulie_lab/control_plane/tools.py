"""The tools that a control plane is made of, their pinned versions, and what is said when one cannot be had."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
CACHE_VARIABLE = "JOULIE_CONTROL_PLANE_DIR"

STAGES = "kwok-stages"
"""The folder of KWOK's stages: how nodes and pods that it plays go from one state to the next."""


class BinariesError(RuntimeError):
    """A program of the control plane cannot be had; the message says why and what to do."""


@dataclass(frozen=True)
class Tool:
    """A Go module and what is made from it; its go.mod and go.sum are packaged under modules/NAME.

    Attributes:
        name: names the folder of its go.mod.
        module: the module's path.
        version: the module's version, as its go.mod has it.
        artefacts: the names of what is made from it.
        version_symbols: Go variables that tell the program its version, with their values.
        cold_build_s: about how long a first build takes on two cores [s].
        download_mb: about how large its official build is [MB]; 0 where none is downloaded.
    """

    name: str
    module: str
    version: str
    artefacts: tuple[str, ...]
    version_symbols: tuple[tuple[str, str], ...]
    cold_build_s: int
    download_mb: int = 0


TOOLS = (
    Tool(
        "kubernetes",
        "k8s.io/kubernetes",
        "v1.36.3",
        ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"),
        (
            ("k8s.io/component-base/version.gitVersion", "v1.36.3"),
            ("k8s.io/component-base/version.gitMajor", "1"),
            ("k8s.io/component-base/version.gitMinor", "36"),
            ("k8s.io/client-go/pkg/version.gitVersion", "v1.36.3"),  # what they call themselves to the API server
        ),
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

Report = Callable[[str], None]
"""Told each line of progress."""
