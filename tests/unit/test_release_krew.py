"""krew's documented rules, against the manifest that a release makes of deploy/krew/joulie.yaml."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def krew() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts/release"))
        import krew  # type: ignore[import-not-found, unused-ignore]

        for name in ("krew", "commands"):
            patch.delitem(sys.modules, name)
    assert isinstance(krew, ModuleType)
    return krew


@pytest.fixture
def manifest(krew: ModuleType) -> Manifest:
    """What a release makes of the template."""
    checksums = {krew.archive_name(of): f"{number:064x}" for number, of in enumerate(krew.PLATFORMS)}
    text = krew.render_manifest(krew.TEMPLATE.read_text(encoding="utf-8"), "v1.2.3", checksums)
    assert "{{" not in text
    found = yaml.safe_load(text)
    assert isinstance(found, dict)
    return found


def test_our_manifest_keeps_the_rules(krew: ModuleType, manifest: Manifest) -> None:
    assert list(krew.problems(manifest, "joulie")) == []


def test_each_platform_has_its_archive(krew: ModuleType, manifest: Manifest) -> None:
    addresses = "https://github.com/joulie-k8s/Joulie/releases/download/v1.2.3/kubectl-joulie_{}.tar.gz"
    found = {
        "_".join(of["selector"]["matchLabels"][key] for key in ("os", "arch")): (of["uri"], of["sha256"], of["bin"])
        for of in manifest["spec"]["platforms"]
    }
    assert found == {
        of: (addresses.format(of), f"{number:064x}", "kubectl-joulie") for number, of in enumerate(krew.PLATFORMS)
    }


def test_an_archive_that_is_missing_is_refused(krew: ModuleType) -> None:
    with pytest.raises(KeyError, match="linux_arm64"):
        krew.render_manifest(krew.TEMPLATE.read_text(encoding="utf-8"), "v1.2.3", {
            krew.archive_name("linux_amd64"): "0" * 64
        })  # fmt: skip


def _platform(**changes: Any) -> Callable[[Manifest], object]:
    return lambda manifest: manifest["spec"]["platforms"][1].update(changes)


def _spec(**changes: Any) -> Callable[[Manifest], object]:
    return lambda manifest: manifest["spec"].update(changes)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda manifest: manifest.update(kind="Plugins"), "apiVersion and kind"),
        (lambda manifest: manifest["metadata"].update(name="joulie2"), "metadata.name"),
        (_spec(version="1.2.3"), "spec.version"),
        (_spec(version="v1.2"), "spec.version"),
        (_spec(homepage=""), "spec.homepage"),
        (_spec(shortDescription=None), "spec.shortDescription"),
        (_spec(shortDescription="x" * 51), "spec.shortDescription"),
        (_spec(shortDescription="Shows power."), "spec.shortDescription"),
        (_spec(platforms=[]), "spec.platforms"),
        (_platform(selector={"matchLabels": {"os": "linux", "libc": "musl"}}), "spec.platforms[1].selector"),
        (_platform(selector=None), "spec.platforms[1].selector"),
        (_platform(uri="https://example.com/kubectl-joulie"), "spec.platforms[1].uri"),
        (_platform(sha256="A" * 64), "spec.platforms[1].sha256"),
        (_platform(bin=""), "spec.platforms[1].bin"),
        (_platform(files=[]), "spec.platforms[1].files"),
        (_platform(files=[{"from": "kubectl-joulie"}]), "spec.platforms[1].files"),
    ],
)
def test_what_krew_refuses(
    krew: ModuleType, manifest: Manifest, change: Callable[[Manifest], object], problem: str
) -> None:
    broken = copy.deepcopy(manifest)
    change(broken)
    assert [line.partition(":")[0] for line in krew.problems(broken, "joulie")] == [problem]


@pytest.mark.parametrize("name", ["Joulie", "kube-joulie", "joulie_k8s", ""])
def test_names(krew: ModuleType, manifest: Manifest, name: str) -> None:
    manifest["metadata"]["name"] = name
    assert [line.partition(":")[0] for line in krew.problems(manifest, name)] == ["metadata.name"]
