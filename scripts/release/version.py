"""Prints or sets the version of Joulie: `version.py` prints it, `version.py MAJOR.MINOR.PATCH` sets it in all files.

Exit status: 0 if all files have the same version, 1 if they disagree, 2 if the argument is invalid.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACES = (
    ("packages/joulie/src/joulie/__init__.py", r'^__version__ = "(.+)"$'),
    ("packages/joulie-lab/pyproject.toml", r'^version = "(.+)"$'),
    ("packages/joulie-lab/pyproject.toml", r'^    "joulie\[.+\]==(.+)",$'),
    ("deploy/helm/joulie/Chart.yaml", r"^version: (.+)$"),
    ("deploy/helm/joulie/Chart.yaml", r'^appVersion: "(.+)"$'),
    ("docs/howto/dask.yaml", r"^ +image: ghcr\.io/joulie-k8s/joulie-lab:(.+)$"),
)
"""Files with the pattern of the lines that contain the version."""
_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
"""The form that Python packages, Helm charts and krew plugins interpret equally: no pre-releases."""


def versions(root: Path = ROOT) -> dict[str, str]:
    """The version at each place, by ``FILE:LINE``."""
    found = {}
    for name, pattern in PLACES:
        text = (root / name).read_text(encoding="utf-8")
        for match in _matches(name, pattern, text):
            found[f"{name}:{text.count(chr(10), 0, match.start()) + 1}"] = match[1]
    return found


def set_version(version: str, root: Path = ROOT) -> None:
    """Write the version to all files; `uv lock` then updates the lock file.

    Raises:
        ValueError: the version is not MAJOR.MINOR.PATCH.
    """
    if not _VERSION.fullmatch(version):
        raise ValueError(f"invalid version {version!r}: must be MAJOR.MINOR.PATCH, such as 1.2.3")
    for name, pattern in PLACES:
        path = root / name
        text = path.read_text(encoding="utf-8")
        for match in reversed(_matches(name, pattern, text)):
            text = text[: match.start(1)] + version + text[match.end(1) :]
        path.write_text(text, encoding="utf-8")


def _matches(name: str, pattern: str, text: str) -> list[re.Match[str]]:
    found = list(re.finditer(pattern, text, re.MULTILINE))
    if not found:
        raise ValueError(f"{name}: no line matches {pattern}")
    return found


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status."""
    try:
        if arguments:
            set_version(arguments[0])
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    found = versions()
    if len(set(found.values())) == 1:
        print(*set(found.values()))  # noqa: T201
        return 0
    for place, version in found.items():
        print(f"{version}  {place}", file=sys.stderr)  # noqa: T201
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
