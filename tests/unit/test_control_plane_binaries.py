"""Where the programs of a control plane come from; nothing is built, started or downloaded here."""

import os
import re
import stat
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from joulie_lab.control_plane import __main__ as command
from joulie_lab.control_plane import go_build
from joulie_lab.control_plane.binaries import cache_folder, cache_root, obtain
from joulie_lab.control_plane.tools import STAGES, TOOLS, BinariesError, Report, Tool

ALL = [artefact for tool in TOOLS for artefact in tool.artefacts]


def write_program(path: Path, text: str = "#!/bin/sh\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


class Builder:
    """Stands in for Go: writes each artefact of a tool, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.built: list[str] = []

    def __call__(self, tool: Tool, target: Path, root: Path, report: Report) -> None:
        self.built.append(tool.name)
        for artefact in tool.artefacts:
            if artefact == STAGES:
                (target / artefact).mkdir()
                (target / artefact / "pod.yaml").write_text("kind: Stage\n")
            else:
                write_program(target / artefact, f"built by {self.built.count(tool.name)}")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"JOULIE_CONTROL_PLANE_DIR": str(tmp_path / "cache")}


def quiet(line: str) -> None:
    del line


def test_what_is_nowhere_is_built_once_and_found_from_then_on(environment: Mapping[str, str]) -> None:
    build = Builder()
    first = obtain(quiet, environment=environment, provide=build)
    assert build.built == [tool.name for tool in TOOLS]
    assert obtain(quiet, environment=environment, provide=build) == first
    assert build.built == [tool.name for tool in TOOLS]
    assert set(first.paths) == set(ALL)
    assert {path.parent for path in first.paths.values()} == {cache_folder(environment)}
    assert (first[STAGES] / "pod.yaml").is_file()


def test_kubebuilder_assets_come_first_and_what_they_lack_from_the_cache(
    environment: dict[str, str], tmp_path: Path
) -> None:
    cached = obtain(quiet, environment=environment, provide=Builder())
    assets = tmp_path / "assets"
    for name in ("etcd", "kube-apiserver", "kubectl"):
        write_program(assets / name)
    build = Builder()
    found = obtain(quiet, environment=environment | {"KUBEBUILDER_ASSETS": str(assets)}, provide=build)
    assert {name for name in ALL if found[name].parent == assets} == {"etcd", "kube-apiserver", "kubectl"}
    assert found["kube-scheduler"] == cached["kube-scheduler"]
    assert not build.built


def test_complete_assets_need_no_cache(tmp_path: Path) -> None:
    assets, cache = tmp_path / "assets", tmp_path / "cache"
    for name in ALL:
        if name != STAGES:
            write_program(assets / name)
    (assets / STAGES).mkdir()
    obtain(
        quiet,
        environment={"KUBEBUILDER_ASSETS": str(assets), "JOULIE_CONTROL_PLANE_DIR": str(cache)},
        provide=Builder(),
    )
    assert not cache.exists()


def test_a_file_that_cannot_be_run_is_no_program(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "etcd").write_text("text")
    found = obtain(quiet, environment=environment | {"KUBEBUILDER_ASSETS": str(tmp_path)}, provide=Builder())
    assert found["etcd"].parent == cache_folder(environment)


def test_assets_that_are_no_folder_are_an_error_that_says_what_to_do(environment: dict[str, str]) -> None:
    with pytest.raises(BinariesError, match=r"KUBEBUILDER_ASSETS=/nowhere: no such folder; .*unset"):
        obtain(quiet, environment=environment | {"KUBEBUILDER_ASSETS": "/nowhere"}, provide=Builder())


def test_a_build_that_fails_leaves_nothing_behind(environment: Mapping[str, str]) -> None:
    def fails(tool: Tool, target: Path, root: Path, report: Report) -> None:
        write_program(target / tool.artefacts[0])
        raise BinariesError("no network")

    with pytest.raises(BinariesError, match="no network"):
        obtain(quiet, environment=environment, provide=fails)
    assert [path.name for path in cache_folder(environment).iterdir()] == [".lock"]


def test_a_build_that_forgets_something_is_not_published(environment: Mapping[str, str]) -> None:
    def forgets(tool: Tool, target: Path, root: Path, report: Report) -> None:
        write_program(target / "kube-apiserver")

    with pytest.raises(BinariesError, match=r"kubernetes v1\.36\.3 was provided without kube-controller-manager"):
        obtain(quiet, environment=environment, provide=forgets)
    assert [path.name for path in cache_folder(environment).iterdir()] == [".lock"]


def test_a_program_lost_from_the_cache_is_built_again(environment: Mapping[str, str]) -> None:
    build = Builder()
    found = obtain(quiet, environment=environment, provide=build)
    found["kwok"].unlink()
    assert obtain(quiet, environment=environment, provide=build)["kwok"].read_text() == "built by 2"
    assert build.built[len(TOOLS) :] == ["kwok"]


def test_two_at_once_build_once(environment: Mapping[str, str]) -> None:
    inside, told = threading.Event(), threading.Event()
    build = Builder()

    def slow(tool: Tool, target: Path, root: Path, report: Report) -> None:
        inside.set()
        assert told.wait(10), "the other one never said that it waits"
        build(tool, target, root, report)

    def second_report(line: str) -> None:
        assert line.startswith("waiting for another build into ")
        told.set()

    first = threading.Thread(target=obtain, args=(quiet,), kwargs={"environment": environment, "provide": slow})
    first.start()
    assert inside.wait(10)
    obtain(second_report, environment=environment, provide=slow)
    first.join()
    assert sorted(build.built) == sorted(tool.name for tool in TOOLS)


def test_a_cache_that_cannot_be_written_names_the_variable() -> None:
    with pytest.raises(BinariesError, match=r"cannot be written .*set JOULIE_CONTROL_PLANE_DIR"):
        obtain(quiet, environment={"JOULIE_CONTROL_PLANE_DIR": "/proc/joulie"}, provide=Builder())


def test_the_cache_folder_carries_every_version(environment: Mapping[str, str], tmp_path: Path) -> None:
    folder = cache_folder(environment)
    assert folder.parent == tmp_path / "cache"
    assert all(f"{tool.name}-{tool.version}" in folder.name for tool in TOOLS)
    assert cache_root({}).parts[-2:] == ("joulie", "control-plane")


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_the_packaged_go_mod_pins_the_version_that_the_code_names(tool: Tool) -> None:
    folder = go_build._MODULES / tool.name
    assert re.search(
        rf"^(require |\t){re.escape(tool.module)} {re.escape(tool.version)}$", (folder / "go.mod").read_text(), re.M
    )
    assert f"{tool.module} {tool.version} h1:" in (folder / "go.sum").read_text()


def test_a_go_that_is_new_enough_is_taken_from_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(tmp_path / "bin/go", "#!/bin/sh\necho go1.27.1\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    assert go_build.find_go(tmp_path / "root", quiet) == tmp_path / "bin/go"


@pytest.mark.parametrize("told", ["go1.22.2", "devel +1234", ""])
def test_an_old_go_is_passed_over_for_the_one_of_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    write_program(tmp_path / "bin/go", f"#!/bin/sh\necho '{told}'\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    installed = tmp_path / "root" / go_build._GO_WHEEL.replace("==", "-") / "lib/python3.11/site-packages/go/bin/go"
    write_program(installed)
    assert go_build.find_go(tmp_path / "root", quiet) == installed


def test_a_wheel_that_cannot_be_installed_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    write_program(tmp_path / "python", "#!/bin/sh\necho 'no module named venv'; exit 1\n")
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(
        BinariesError, match=r"no module named venv(.|\n)*newer Go on the PATH, or set KUBEBUILDER_ASSETS"
    ):
        go_build.find_go(tmp_path / "root", quiet)
    assert not list((tmp_path / "root").iterdir())


def fake_go(folder: Path, build: str, module: Path) -> Path:
    script = (
        "#!/bin/sh\n"
        'case "$1" in\n'
        "env) echo go1.26.0 ;;\n"
        f"list) echo {module} ;;\n"
        f'build) while [ "$1" != -o ]; do shift; done; out=$2; {build} ;;\n'
        "esac\n"
    )
    write_program(folder / "go", script)
    return folder


def test_kwok_brings_its_stages_out_of_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = tmp_path / "module/kustomize/stage"
    for folder in ("node/fast", "node/heartbeat-with-lease", "pod/fast", "pod/chaos"):
        (stages / folder).mkdir(parents=True)
        (stages / folder / "stage.yaml").write_text(folder)
        (stages / folder / "kustomization.yaml").write_text("not a stage")
    make = "echo 'package/one'; touch ${out}kwok; chmod +x ${out}kwok"
    monkeypatch.setenv("PATH", str(fake_go(tmp_path / "bin", make, tmp_path / "module")), prepend=os.pathsep)
    target, lines = tmp_path / "target", list[str]()
    target.mkdir()
    go_build.build_tool(next(tool for tool in TOOLS if tool.name == "kwok"), target, tmp_path, lines.append)
    assert sorted(path.name for path in (target / STAGES).iterdir()) == [
        "node-fast-stage.yaml",
        "node-heartbeat-with-lease-stage.yaml",
        "pod-fast-stage.yaml",
    ]
    assert lines[0].startswith("kwok v0.8.0: building with ")
    assert re.fullmatch(r"kwok v0\.8\.0: built in \d+ s", lines[-1])


def test_a_failed_go_build_shows_the_end_of_its_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail = "echo 'dial tcp: no route to host' >&2; exit 3"
    monkeypatch.setenv("PATH", str(fake_go(tmp_path / "bin", fail, tmp_path)), prepend=os.pathsep)
    with pytest.raises(
        BinariesError, match=r"helm v4\.3\.1 cannot be built(.|\n)*no route to host(.|\n)*KUBEBUILDER_ASSETS"
    ):
        go_build.build_tool(next(tool for tool in TOOLS if tool.name == "helm"), tmp_path, tmp_path, quiet)


@pytest.mark.slow
def test_the_command_prints_the_folders_alone(
    environment: Mapping[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "obtain", partial(obtain, provide=Builder()))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("JOULIE_CONTROL_PLANE_DIR", environment["JOULIE_CONTROL_PLANE_DIR"])
    write_program(tmp_path / "elsewhere/prometheus")
    monkeypatch.setenv("JOULIE_PROMETHEUS", str(tmp_path / "elsewhere/prometheus"))
    write_program(tmp_path / "on_path/promtool")
    monkeypatch.setenv("PATH", str(tmp_path / "on_path"), prepend=os.pathsep)
    for name in ("initdb", "postgres"):
        write_program(tmp_path / "database" / name)
    monkeypatch.setenv("JOULIE_POSTGRES_BIN", str(tmp_path / "database"))
    monkeypatch.setattr(command, "obtain_kueue_definitions", lambda _report: tmp_path / "kueue")
    assert command.main([]) == 0
    elsewhere = (tmp_path / name for name in ("elsewhere", "on_path", "database", "kueue"))
    folders = [cache_folder(environment), *elsewhere]
    assert capsys.readouterr().out == "".join(f"{folder}\n" for folder in folders)


def test_the_command_tells_an_error_on_one_stream_and_in_its_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", "/nowhere")
    assert command.main([]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: KUBEBUILDER_ASSETS=/nowhere")
