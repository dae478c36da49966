"""Render deploy/manifests/compute-gardener-scheduler.yaml from the chart, for `kubectl apply`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from joulie_lab.control_plane import obtain

ROOT = Path(__file__).parents[1]
MANIFEST = ROOT / "deploy/manifests/compute-gardener-scheduler.yaml"
KEY = "YOUR_ELECTRICITY_MAPS_API_KEY"
KUBERNETES = "1.36.0"
HEADER = f"""\
# Carbon, price and energy for a cluster, without Helm: pods of the scheduler compute-gardener-scheduler wait for clean
# power, and every joule is accounted. Written by scripts/render_manifest.py from the chart: change that, then run it.
#
#   1. Put your key of the Electricity Maps API into the Secret below, instead of {KEY}.
#   2. Give kube-scheduler the version of your cluster: its image is of v{KUBERNETES} here.
#   3. kubectl apply --server-side -f compute-gardener-scheduler.yaml
#
# Before you delete it, run `joulie cleanup --pod-namespace kube-system`, so that no pod is left waiting.
"""
# A webhook works on every version, a MutatingAdmissionPolicy on newer ones only. Programs that set caps are excluded.
VALUES = {
    "fullnameOverride": "joulie",
    # Whoever applies it has asked for deferral.
    "mode": "enforce",
    "operator": {"enabled": False},
    "agent": {"enabled": False},
    "steering": {"mode": "none"},
    # A Helm hook: applied by kubectl, it would clean up at once.
    "cleanup": {"enabled": False},
    "grid": {"enabled": True, "admission": {"mode": "webhook"}},
    "carbonAware": {"electricityMap": {"apiKey": KEY}},
}


def manifest(helm: Path) -> str:
    """The manifest as rendered from the chart, beginning with the Secret that holds the key.

    Args:
        helm: the program.
    """
    command = [str(helm), "template", "compute-gardener-scheduler", str(ROOT / "deploy/helm/joulie")]
    options = ["--namespace", "kube-system", "--kube-version", KUBERNETES, "-f", "-"]
    done = subprocess.run([*command, *options], input=json.dumps(VALUES), capture_output=True, text=True, check=True)  # noqa: S603
    documents = [text.strip("\n") for text in done.stdout.split("\n---\n")]
    documents = [text.removeprefix("---\n") for text in documents]
    documents.sort(key=lambda text: KEY not in text)
    return HEADER + "".join(f"---\n{text}\n" for text in documents)


if __name__ == "__main__":
    MANIFEST.write_text(manifest(obtain(lambda line: print(line, file=sys.stderr))["helm"]), encoding="utf-8")  # noqa: T201
