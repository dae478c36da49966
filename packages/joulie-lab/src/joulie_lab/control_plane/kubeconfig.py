"""Writes self-contained kubeconfig files, with embedded certificates, that any program can use."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path

from joulie_lab.control_plane.certificates import Certificate


def certificate_user(identity: Certificate) -> dict[str, str]:
    """Return the kubeconfig user of a client certificate."""
    return {
        "client-certificate-data": _encoded(identity.certificate),
        "client-key-data": _encoded(identity.key),
    }


def write_kubeconfig(
    path: Path, *, server: str, authority: Path, user: Mapping[str, str], namespace: str = "default"
) -> Path:
    """Write a kubeconfig of the API server at the URL `server`, readable by its owner only, and return its path."""
    path.touch(mode=0o600)
    cluster = {"server": server, "certificate-authority-data": _encoded(authority)}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": cluster}],
        "users": [{"name": path.stem, "user": dict(user)}],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": path.stem, "namespace": namespace}}],
        "current-context": "local",
    }
    path.write_text(json.dumps(content, indent=1))  # JSON is YAML, and quotes what needs quoting
    return path


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
