"""The files that are delivered beside the code say the same as the code."""

import re
from pathlib import Path

import yaml

from joulie import __version__

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def test_one_version() -> None:
    chart = yaml.safe_load((DEPLOY / "helm" / "joulie" / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_the_image_is_built_with_the_same_uv_as_everything() -> None:
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (used,) = re.findall(r"^ARG UV_VERSION=(.+)$", dockerfile, re.MULTILINE)
    assert re.findall(r"^UV_VERSION := (.+)$", makefile, re.MULTILINE) == [used]


def test_the_image_has_what_it_copies() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"}
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text(encoding="utf-8")
    copied = {name for line in re.findall(r"^COPY (?!--)(.+) \S+$", dockerfile, re.MULTILINE) for name in line.split()}
    assert {name for name in copied if not any(Path(name).is_relative_to(root) for root in kept)} == set()
    assert all((ROOT / name).exists() for name in copied | kept)


def test_no_image_runs_as_root() -> None:
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text(encoding="utf-8")
    stages = re.split(r"^FROM .+ AS (\S+)$", dockerfile, flags=re.MULTILINE)[1:]
    users = {
        name: re.findall(r"^USER (.+)$", text, re.MULTILINE) for name, text in zip(*[iter(stages)] * 2, strict=True)
    }
    assert {name: users[name] for name in ("lab", "joulie")} == {"lab": ["65532:65532"], "joulie": ["65532:65532"]}


def test_the_krew_manifest_once_it_is_filled_in() -> None:
    template = (DEPLOY / "krew" / "joulie.yaml").read_text(encoding="utf-8")
    archive = r'\{\{addURIAndSha "(.+?)" \.TagName \}\}'
    filled = re.sub(archive, lambda found: f'{{uri: "{found[1]}", sha256: "0"}}', template)
    filled = re.sub(r"^( +)\{(uri: .+), (sha256: .+)\}$", r"\1\2\n\1\3", filled, flags=re.MULTILINE)
    manifest = yaml.safe_load(filled.replace("{{ .TagName }}", "v0.1.0"))
    assert manifest["metadata"]["name"] == "joulie"
    assert manifest["spec"]["version"] == "v0.1.0"
    assert len(manifest["spec"]["shortDescription"]) <= 50
    platforms = [tuple(entry["selector"]["matchLabels"].values()) for entry in manifest["spec"]["platforms"]]
    assert len(set(platforms)) == len(platforms) == 3
    for (system, machine), entry in zip(platforms, manifest["spec"]["platforms"], strict=True):
        assert entry["bin"] == "kubectl-joulie"
        assert entry["uri"].endswith(f"v0.1.0/kubectl-joulie_{system}_{machine}.tar.gz")
