"""Print the images that the chart uses with all components, for registries without access to the internet."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from joulie_lab.control_plane import obtain

CHART = Path(__file__).parents[1] / "deploy/helm/joulie"
VALUES = {
    "agentPool": {"enabled": True},
    "simulator": {"enabled": True},
    "scheduler": {"enabled": True},
    "grid": {"enabled": True},
}


def images(helm: Path) -> list[str]:
    """References of all images, sorted.

    Args:
        helm: the program; the second scheduler's image is that of the Kubernetes version that it stands for.
    """
    command = [str(helm), "template", "joulie", str(CHART), "-f", "-"]
    done = subprocess.run(command, input=json.dumps(VALUES), capture_output=True, text=True, check=True)  # noqa: S603
    return sorted(set(_images_of(list(yaml.safe_load_all(done.stdout)))))


def _images_of(part: Any) -> Iterator[str]:
    match part:
        case {"image": str(reference)}:
            yield reference
        case dict():
            for inner in part.values():
                yield from _images_of(inner)
        case list():
            for inner in part:
                yield from _images_of(inner)


if __name__ == "__main__":
    print("\n".join(images(obtain(lambda line: print(line, file=sys.stderr))["helm"])))  # noqa: T201
