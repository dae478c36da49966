"""The Dockerfile as scripts/release/image.py reads it, and what its context must hold."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy/docker/Dockerfile").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def image() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts/release"))
        import image  # type: ignore[import-not-found, unused-ignore]

        for name in ("image", "commands"):
            patch.delitem(sys.modules, name)
    assert isinstance(image, ModuleType)
    return image


def test_continued_lines_and_comments(image: ModuleType) -> None:
    stages = image.read_stages("ARG V=1\nFROM a:${V} AS one\n# no\nRUN b \\\n    # no\n    && c\nFROM one AS two\n")
    assert stages["one"].base == "a:${V}"
    assert stages["one"].steps == [("RUN", "b && c")]
    assert (stages["two"].base, stages["two"].steps) == ("one", [])


def test_the_product_is_the_last_stage_and_takes_nothing_of_the_laboratorys(image: ModuleType) -> None:
    stages = image.read_stages(DOCKERFILE)
    assert list(stages)[-1] == "joulie"
    assert "lab" in stages
    copied = " ".join(rest for word, rest in stages["build"].steps if word == "COPY")
    # Its metadata is part of the workspace that the lock file describes; its source is not there.
    assert re.findall(r"packages/joulie-lab\S*", copied) == [
        "packages/joulie-lab/pyproject.toml",
        "packages/joulie-lab/",
    ]
    assert ("COPY", "--from=build /opt/joulie /opt/joulie") in stages["joulie"].steps


def test_what_is_copied_is_in_the_context(image: ModuleType) -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    sources = [
        source
        for stage in image.read_stages(DOCKERFILE).values()
        for word, rest in stage.steps
        if word == "COPY" and not rest.startswith("--from=")
        for source in rest.split()[:-1]
    ]
    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert any(source == name or source.startswith(f"{name}/") for name in allowed), source
    for name in allowed:
        assert any(source == name or source.startswith(f"{name}/") for source in sources), f"{name} is not needed"


def test_uv_is_the_makefiles(image: ModuleType) -> None:
    (of_make,) = re.findall(r"^UV_VERSION := (\S+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert f"ARG UV_VERSION={of_make}\n" in DOCKERFILE


def test_paths_of_this_machine_stay(image: ModuleType) -> None:
    inside = image._OF_IMAGE.sub(
        "/target/", "find /opt/joulie -name /x/opt ./opt ${HOME}/opt && cd /source && ls /optics"
    )
    assert inside == "find /target/opt/joulie -name /x/opt ./opt ${HOME}/opt && cd /target/source && ls /optics"


def test_the_check_of_the_products_image_misses_nothing_that_the_product_requires() -> None:
    text = (ROOT / "scripts/release/check.py").read_text(encoding="utf-8")
    (unwanted,) = re.findall(r"^_OF_THE_LABORATORY = (\(.+\))$", text, re.MULTILINE)
    project = tomllib.loads((ROOT / "packages/joulie/pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {re.split(r"[\[<>=~!; ]", one)[0] for one in project["dependencies"]}
    assert "numpy" in required
    assert not required & set(ast.literal_eval(unwanted))
