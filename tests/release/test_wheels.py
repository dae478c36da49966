"""The wheels in clean environments: `joulie` alone is the product and nothing else; `joulie-lab` joins it.

JOULIE_WHEELS names a folder with wheels that are built already; without it they are built from this source tree.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from zipfile import ZipFile

import pytest

from joulie import __version__
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import CONFIG_MAPS, NAMESPACES, NODES
from joulie_lab.adapters.crd import custom_resource_definitions
from joulie_lab.control_plane import wait_for
from joulie_lab.control_plane.ports import free_port
from joulie_lab.fakes.kubernetes import FakeCluster

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
UV = ROOT / ".tools/bin/uv"

PRODUCT = {
    *("accounting", "agent", "caps", "cleanup", "completion", "extender", "grid", "nodes", "operator", "record", "web"),
    *(
        "agent inspect",
        "caps recommend",
        "caps replay",
        "grid controller",
        "grid guard",
        "grid webhook",
        "nodes annotate",
    ),
    *("grid best", "grid wait", "ledger", "ledger check", "ledger close", "ledger correct"),
    *("ledger corrections", "ledger export", "ledger report", "ledger verify"),
}
"""Every command of `joulie`, groups too."""
LABORATORY = {
    *("bench", "demo", "experiment", "fmu", "machine", "scenario", "simulate", "simulator", "sweep", "workload"),
    *("replay", "trial"),
}
OF_THE_LABORATORY_ALONE = {
    *("fmpy", "matplotlib", "numba", "llvmlite", "polars", "scipy", "pandas"),
    *("distributed", "sklearn"),
}
"""Import names of what no program of the product needs."""
WALK = """
import json, sys, click
from joulie.apps.cli.main import cli
from joulie.apps.kubectl.main import kubectl_joulie
def walk(command, path):
    yield " ".join(path)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from walk(command.get_command(context, name), [*path, name])
print(json.dumps([list(walk(cli, []))[1:], list(walk(kubectl_joulie, []))[1:]]))
"""
HELP = """
import json, sys
from click.testing import CliRunner
from joulie.apps.cli.main import cli
from joulie.apps.kubectl.main import kubectl_joulie
asked = []
for command, paths in zip((cli, kubectl_joulie), json.loads(sys.argv[1]), strict=True):
    for path in ["", *paths]:
        ended = CliRunner().invoke(command, [*path.split(), "--help"])
        asked.append((f"{command.name} {path}", ended.exit_code, ended.output))
print(json.dumps(asked))
"""
"""All in one process: a process for each of them takes half a second of which `--help` is a thirtieth."""
PROGRAMS = ("joulie", "kubectl-joulie", "joulie operator", "joulie agent", "joulie extender", "joulie grid controller")


@dataclass(frozen=True)
class Environment:
    """A virtual environment, seen from outside."""

    folder: Path

    def program(self, name: str) -> Path:
        return self.folder / "bin" / name

    def run(self, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
        program, *arguments = map(str, words)
        command = [self.program(program), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=self.folder, env=self.variables(**variables)
        )

    def variables(self, **variables: str) -> Mapping[str, str]:
        """Nothing of the environment that the tests run in."""
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder), **variables}

    @cached_property
    def commands(self) -> list[set[str]]:
        """The commands of `joulie` and of `kubectl-joulie`."""
        walked = self.run("python", "-c", WALK)
        assert walked.returncode == 0, walked.stderr
        return [set(paths) for paths in json.loads(walked.stdout)]


def uv(*words: object) -> None:
    assert UV.exists(), "uv is not in .tools: run make setup"
    ended = subprocess.run([UV, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both wheels."""
    if given := os.environ.get("JOULIE_WHEELS"):
        return Path(given)
    folder = tmp_path_factory.mktemp("wheels")
    for package in ("joulie", "joulie-lab"):
        uv("build", "--quiet", "--wheel", "--package", package, "--out-dir", folder)
    return folder


Install = Callable[..., Environment]


@pytest.fixture(scope="module")
def install(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Install:
    """Makes environments of wheels, with dependencies of the versions that the lock file has."""
    constraints = tmp_path_factory.mktemp("constraints") / "constraints.txt"
    uv("export", "--quiet", "--locked", "--no-default-groups", "--all-packages", "--all-extras", "--no-hashes",
       "--no-emit-workspace", "--output-file", constraints)  # fmt: skip

    def make(*requirements: str) -> Environment:
        environment = Environment(tmp_path_factory.mktemp("environment") / "venv")
        python = environment.program("python")
        uv("venv", "--quiet", "--python", sys.executable, environment.folder)
        # Read again: wheels of this version that were once built into the same folder are in uv's cache.
        uv("pip", "install", "--quiet", "--python", python, "--constraints", constraints, "--find-links", wheels,
           "--refresh-package", "joulie", "--refresh-package", "joulie-lab", *requirements)  # fmt: skip
        lend_bytecode(environment)
        return environment

    return make


def lend_bytecode(environment: Environment) -> None:
    """Link what this environment has compiled of the same files: to compile numba and SciPy anew takes 20 s.

    Python takes it only where the source is the same to the second and the byte, else compiles as ever.
    """
    (theirs,) = environment.folder.glob("lib/python*/site-packages")
    ours = Path(sysconfig.get_path("purelib"))
    for folder in ours.rglob("__pycache__"):
        lent = theirs / folder.relative_to(ours)
        if lent.parent.is_dir() and not lent.exists():
            shutil.copytree(folder, lent, copy_function=os.symlink)


def wheel(folder: Path, package: str) -> Path:
    return folder / f"{package}-{__version__}-py3-none-any.whl"


@pytest.fixture(scope="module")
def alone(install: Install, wheels: Path) -> Environment:
    """An environment that has nothing but `joulie[grid]`."""
    return install(f"joulie[grid] @ {wheel(wheels, 'joulie').as_uri()}")


# ---- joulie alone


def test_the_commands_are_the_products(alone: Environment) -> None:
    commands, plugin = alone.commands
    assert commands == PRODUCT
    assert {"status", "top pods", "energy", "explain pod"} <= plugin
    offered = alone.run("joulie", "--help").stdout
    assert not [name for name in LABORATORY if f"\n  {name} " in offered]


def test_every_command_has_its_help(alone: Environment) -> None:
    asked = alone.run("python", "-c", HELP, json.dumps([sorted(paths) for paths in alone.commands]))
    assert (asked.returncode, asked.stderr) == (0, "")
    assert not [words for words, code, text in json.loads(asked.stdout) if code or not text.startswith("Usage: ")]


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_starts_its_help(alone: Environment, program: str) -> None:
    ended = alone.run(*program.split(), "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("Usage: ")


@pytest.mark.parametrize("name", sorted(LABORATORY))
def test_a_command_of_the_laboratory_says_what_to_install(alone: Environment, name: str) -> None:
    ended = alone.run("joulie", name, "anything", "--some-option")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"joulie: error: {name} is not installed: pip install joulie-lab\n"


def test_nothing_of_the_laboratory_is_installed(alone: Environment) -> None:
    (packages,) = alone.folder.glob("lib/python*/site-packages")
    installed = {path.name.lower() for path in packages.iterdir()}
    assert "joulie" in installed
    assert "joulie_lab" not in installed
    assert not OF_THE_LABORATORY_ALONE & installed


def test_power_limits_are_recommended(alone: Environment) -> None:
    sweep = alone.folder / "sweep.csv"
    rows = ("job,power_limit,time_per_epoch,average_power", "resnet,300,118.0,271", "resnet,200,123.1,198")
    sweep.write_text("\n".join(rows), encoding="utf-8")
    ended = alone.run("joulie", "caps", "recommend", "--sweep", sweep, "--gpu", "NVIDIA A40", "--slowdown", "1.05")
    assert ended.returncode == 0, ended.stderr
    assert "One limit for all: 200 W" in ended.stdout


def test_completions(alone: Environment) -> None:
    assert "_JOULIE_COMPLETE=bash_complete" in alone.run("joulie", "completion", "bash").stdout
    assert "status\tShow" in alone.run("kubectl_complete-joulie", "sta").stdout


Scenario = Callable[[Mapping[str, str]], Awaitable[None]]


def on_a_cluster(environment: Environment, tmp_path: Path, scenario: Scenario) -> None:
    """Play it with the variables of a program that finds a fake cluster of one node."""

    async def main() -> None:
        async with FakeCluster(custom_resource_definitions()) as cluster:
            kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig")
            async with KubeClient.connect(kubeconfig=kubeconfig) as client, asyncio.timeout(120.0):
                await client.create(NAMESPACES, {"metadata": {"name": "joulie-system"}})
                gating = {"metadata": {"name": "joulie-grid-gating", "namespace": "joulie-system"}}
                await client.create(CONFIG_MAPS, gating)
                node = {"metadata": {"name": "node-1", "labels": {"joulie.io/managed": "true"}}}
                await client.create(NODES, node)
                await scenario(environment.variables(KUBECONFIG=str(kubeconfig)))

    asyncio.run(main())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("joulie cleanup", "0 nodes restored"),
        ("joulie nodes annotate --dry-run", "node-1"),
        ("joulie grid guard --once", "still waiting: 0, Jobs resumed: 0"),
        ("kubectl-joulie status", "1 node (1 unknown), 0 pods"),
    ],
)
def test_commands_on_a_cluster(alone: Environment, tmp_path: Path, words: str, expected: str) -> None:
    async def scenario(variables: Mapping[str, str]) -> None:
        program, *arguments = words.split()
        ended = await asyncio.to_thread(alone.run, program, *arguments, **variables)
        assert ended.returncode == 0, ended.stderr
        assert expected in ended.stdout

    on_a_cluster(alone, tmp_path, scenario)


@pytest.mark.parametrize(
    "words",
    [
        "operator",
        "agent --node-name node-1 --simulate-only --state-dir {folder}",
        "extender --port 0 --shutdown-delay 0s",
        "grid controller --no-metrics-tls",
        "grid webhook --webhook-addr 127.0.0.1:0 --shutdown-delay 0s",
        "accounting --no-metrics-tls --ledger-url sqlite:///{folder}/ledger.db",
    ],
)
def test_programs_serve_until_they_are_stopped(alone: Environment, tmp_path: Path, words: str) -> None:
    async def scenario(variables: Mapping[str, str]) -> None:
        port = free_port()
        arguments = [*words.format(folder=tmp_path).split(), "--metrics-addr", f"127.0.0.1:{port}"]
        program = await asyncio.create_subprocess_exec(alone.program("joulie"), *arguments, env=variables)
        try:
            url = f"http://127.0.0.1:{port}/healthz"
            await asyncio.to_thread(wait_for, lambda: status_of(url) == 200, 60.0, f"{words} serves {url}")
        finally:
            program.terminate()
            status = await program.wait()
        assert status == 0

    on_a_cluster(alone, tmp_path, scenario)


def status_of(url: str) -> int | None:
    """What a server answers; None where nobody listens."""
    try:
        with urllib.request.urlopen(url, timeout=5.0) as answer:
            return int(answer.status)
    except OSError:
        return None


# ---- with the laboratory


def test_the_laboratory_brings_what_is_not_python(wheels: Path) -> None:
    names = ZipFile(wheel(wheels, "joulie_lab")).namelist()
    chart = ROOT / "deploy/helm/joulie"
    for file in (path for path in chart.rglob("*") if path.is_file()):
        assert f"joulie_lab/control_plane/charts/joulie/{file.relative_to(chart)}" in names
    source = ROOT / "packages/joulie-lab/src"
    others = [path for path in source.rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"}]
    assert {path.name for path in others} >= {"go.mod", "go.sum", "dx_plant.c", "report.html", "published-2500.yaml"}
    assert {str(path.relative_to(source)) for path in others} <= set(names)


def test_the_product_brings_nothing_of_the_laboratory(wheels: Path) -> None:
    rooms = {name.partition("/")[0] for name in ZipFile(wheel(wheels, "joulie")).namelist()}
    assert rooms == {"joulie", f"joulie-{__version__}.dist-info"}


def test_old_extras_bring_the_laboratory(install: Install, wheels: Path) -> None:
    both = install(f"joulie[simulate,control-plane] @ {wheel(wheels, 'joulie').as_uri()}")
    commands, _ = both.commands
    assert commands >= PRODUCT | LABORATORY
    ended = both.run("joulie", "scenario", "list")
    assert ended.returncode == 0, ended.stderr
    assert "published-2500" in ended.stdout
    chart = "from joulie_lab.control_plane.chart import find_chart; print(find_chart())"
    assert both.run("python", "-c", chart).stdout.strip().endswith("joulie_lab/control_plane/charts/joulie")


@pytest.mark.parametrize(("extra", "brings"), [("dask", "distributed"), ("learn", "scikit-learn")])
def test_extras_are_aliases_of_the_laboratorys(wheels: Path, extra: str, brings: str) -> None:
    def requirements(package: str) -> list[str]:
        archive = ZipFile(wheel(wheels, package))
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
        return [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]

    assert f"joulie-lab[{extra}]; extra == '{extra}'" in requirements("joulie")
    assert any(line.startswith(brings) and line.endswith(f"extra == '{extra}'") for line in requirements("joulie_lab"))
    assert f"joulie[grid,parquet]=={__version__}" in requirements("joulie_lab")
