"""Builds the root file system of an image from the Dockerfile without a container engine.

`image.py TARGET FOLDER` runs the RUN, COPY and ENV instructions of the stage TARGET (joulie, lab) and of the stages
that it is built from; /opt and /source of the image are in FOLDER. Base images are not used: Python is the interpreter
that runs this script, and uv is that of `make setup`.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from commands import ROOT, UV, CommandError, run

DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
_OF_IMAGE = re.compile(r"(?<![\w.}/-])/(?=(?:opt|source)\b)")
"""The start of a path inside the image, as opposed to one of this machine."""
_PYTHON = "python"
"""The stage that prepares the base image's Python, which is not used."""

_OF_BUILD_MACHINE = ("UV_NO_CACHE",)
"""Variables that matter only in a container."""


@dataclass
class Stage:
    """A stage of the Dockerfile: its base and its instructions."""

    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)


def read_stages(text: str) -> dict[str, Stage]:
    """The stages of a Dockerfile by name."""
    stages: dict[str, Stage] = {}
    for word, rest in _instructions(text):
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            stage = stages[name] = Stage(base)
        elif stages:
            stage.steps.append((word, rest))
    return stages


def build(target: str, root: Path) -> Path:
    """Run the steps of a stage, and return its /opt/joulie.

    Raises:
        CommandError: a step failed.
    """
    shutil.rmtree(root, ignore_errors=True)
    (root / "source").mkdir(parents=True)
    stages = read_stages(DOCKERFILE.read_text(encoding="utf-8"))
    _run_stage(stages, target, root, {"PATH": f"{UV.parent}:{os.environ['PATH']}", "UV_PYTHON": sys.executable})
    shutil.rmtree(root / "source", ignore_errors=True)
    return root / "opt" / "joulie"


def _run_stage(stages: dict[str, Stage], name: str, root: Path, variables: dict[str, str]) -> None:
    stage = stages[name]
    if stage.base in stages and stage.base != _PYTHON:
        _run_stage(stages, stage.base, root, variables)
    for word, rest in stage.steps:
        inside = _OF_IMAGE.sub(f"{root}/", rest)
        if word == "RUN":
            run("sh", "-ec", inside, cwd=root / "source", env=variables)
        elif word == "ENV":
            variables |= _assignments(inside, variables)
        elif word == "COPY" and (given := re.match(r"--from=(\S+) (.+)", rest)):
            # Stages with steps run in the same folder, so nothing is copied; others provide tools that are here.
            if stages[given[1]].steps:
                _run_stage(stages, given[1], root, dict(variables))
        elif word == "COPY":
            *sources, target = inside.split()
            _copy([ROOT / source for source in sources], root / "source" / target)


def _copy(sources: list[Path], target: Path) -> None:
    for source in sources:
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """The instructions with their continuation lines joined, without comments."""
    lines = (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    for joined in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        word, _, rest = joined.partition(" ")
        yield word, re.sub(r"\s+", " ", rest.strip())


def _assignments(text: str, variables: dict[str, str]) -> dict[str, str]:
    pairs = (pair.partition("=")[::2] for pair in text.split())
    return {name: value.replace("$PATH", variables["PATH"]) for name, value in pairs if name not in _OF_BUILD_MACHINE}


def contents(prefix: Path) -> dict[str, int]:
    """The size of each file, bytes; links are not followed."""
    files = (path for path in sorted(prefix.rglob("*")) if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(prefix)): path.stat().st_size for path in files}


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status."""
    try:
        target, folder = arguments
        sizes = contents(build(target, Path(folder).resolve()))
    except (ValueError, CommandError) as error:
        print(f"error: {error}; usage: image.py TARGET FOLDER", file=sys.stderr)  # noqa: T201
        return 2
    for name, size in sizes.items():
        print(f"{size:>12,}  {name}")  # noqa: T201
    print(f"{sum(sizes.values()):>12,}  in {len(sizes)} files")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
