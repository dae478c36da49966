"""A local control plane: starts and stops its processes, issues credentials, and runs kubectl and helm against it."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from joulie_lab.control_plane import components
from joulie_lab.control_plane.api import AdminApi, ApiError
from joulie_lab.control_plane.binaries import Binaries, obtain
from joulie_lab.control_plane.certificates import Certificate, CertificateAuthority, write_service_account_keys
from joulie_lab.control_plane.components import Network
from joulie_lab.control_plane.definitions import definitions_are_served
from joulie_lab.control_plane.kubeconfig import certificate_user, write_kubeconfig
from joulie_lab.control_plane.ports import free_port
from joulie_lab.control_plane.process import ManagedProcess, ProcessFailedError
from joulie_lab.control_plane.waiting import wait_for

COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")
"""Names of the components, in start order."""

_STORAGE = COMPONENTS[:2]
_READY_PATHS = {
    "kube-apiserver": "/readyz",
    "kube-controller-manager": "/healthz",
    "kube-scheduler": "/readyz",
    "kwok": "/readyz",
}
_READY_S = 90.0
# On SIGTERM the API server waits up to a minute for its clients to close their watches.
_STOP_GRACE_S = 2.0
_DEFINITIONS_S = 120.0
_PROBE_S = 2.0
_PORT_ATTEMPTS = 5
# Go's collector takes a fifth of the CPU time of a control plane that lives for minutes; memory is cheaper.
_RARE_COLLECTION = {"GOGC": os.environ.get("GOGC", "400")}
_PORT_TAKEN = "address already in use"

_CLIENTS: Mapping[str, tuple[str, Sequence[str]]] = {
    "admin": ("joulie-admin", ["system:masters"]),
    "kube-controller-manager": ("system:kube-controller-manager", []),
    "kube-scheduler": ("system:kube-scheduler", []),
    "kwok": ("kwok", ["system:masters"]),
}


class KubectlError(RuntimeError):
    """A kubectl or helm command failed; the message contains its stderr."""

    def __init__(self, command: Sequence[str], exit_status: int, stderr: str) -> None:
        super().__init__(f"{' '.join(command)}: exit status {exit_status}: {stderr.strip()}")
        self.exit_status = exit_status
        self.stderr = stderr


@dataclass(frozen=True)
class _Site:
    """Resources that exist from `start` to `close`."""

    layout: components.Layout
    authority: CertificateAuthority
    clients: Mapping[str, Certificate]
    api: AdminApi


class LocalControlPlane:
    """A Kubernetes control plane of child processes, private to this machine; use it as a context manager.

    Every component can be stopped, started, restarted, paused and resumed by its name in `COMPONENTS` while the others
    keep running. Objects survive restarts of components, the API server keeps its port, and `close` removes everything.
    Start it from a thread that lives as long as it does: Linux kills the processes when that thread ends.
    """

    def __init__(
        self,
        *,
        binaries: Binaries | None = None,
        components: Collection[str] = COMPONENTS,
        scheduler_configuration: Mapping[str, Any] | None = None,
        audit: bool = False,
        network: Network | None = None,
        extended_certificates: bool = True,
        log_folder: Path | None = None,
        report: Callable[[str], None] | None = None,
    ) -> None:
        """Configure the control plane; `start` runs it.

        Args:
            binaries: programs to run; None to find them, or to build them once on this machine.
            components: components that `start` runs; the others can be started later by name.
            scheduler_configuration: a KubeSchedulerConfiguration ("profiles", "extenders" ...); the connection to the
                API server is filled in.
            audit: whether to record every write, for `audit_events`.
            network: addresses of the API server; None for loopback, where only simulated nodes reach it.
            extended_certificates: see `CertificateAuthority`.
            log_folder: folder for logs that are kept; None removes the logs with everything else.
            report: called with each line of progress of a build, which takes minutes; None for no reports.
        """
        unknown = set(components) - set(COMPONENTS)
        if unknown:
            raise ValueError(f"unknown components {sorted(unknown)}; there are {', '.join(COMPONENTS)}")
        self._given_binaries = binaries
        self._report = report or (lambda line: None)
        self._wanted = [name for name in COMPONENTS if name in components]
        self._scheduler_configuration = dict(scheduler_configuration or {})
        self._audit = audit
        self._network = network or Network()
        self._extended_certificates = extended_certificates
        self._given_log_folder = log_folder
        self._site: _Site | None = None
        self._processes: dict[str, ManagedProcess] = {}
        self._ports: dict[str, int] = {}
        self._keeps_port: set[str] = set()
        self._spawned: list[ManagedProcess] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- life

    def start(self, *names: str) -> None:
        """Start the components `names`, or all configured ones, and wait until they are ready.

        Raises:
            BinariesError: a program is missing and cannot be built.
            ProcessFailedError: a component ended or was not ready in time; the message has the end of its log.
        """
        if self._site is None:
            self._site = self._prepare()
        try:
            self._start(_in_order(names or self._wanted))
        except BaseException:
            if not names:
                self.close()
            raise

    def stop(self, *names: str) -> None:
        """Stop the components `names`, or all of them, in order; the objects are kept."""
        for name in reversed(_in_order(names or COMPONENTS)):
            if name in self._processes:
                self._processes[name].stop(_STOP_GRACE_S)

    def kill(self, name: str) -> None:
        """End the component `name` as a crash would (SIGKILL)."""
        self.process(name).kill()

    def restart(self, *names: str) -> None:
        """Stop and start the components `names`; the API server keeps its port and its objects."""
        self.stop(*names)
        self.start(*names)

    def pause(self, name: str) -> None:
        """Freeze the component `name` (SIGSTOP), for example to simulate a very slow etcd."""
        self.process(name).pause()

    def resume(self, name: str) -> None:
        """Resume the paused component `name` (SIGCONT)."""
        self.process(name).resume()

    def configure_scheduler(self, configuration: Mapping[str, Any]) -> None:
        """Restart kube-scheduler with another KubeSchedulerConfiguration; start it if it was stopped."""
        self._scheduler_configuration = dict(configuration)
        self.restart("kube-scheduler")

    def close(self) -> None:
        """Stop everything in order, and remove all files except logs in a given `log_folder`. Idempotent."""
        while self._spawned:
            self._spawned.pop().stop()
        self.stop()
        atexit.unregister(self.close)
        self._processes.clear()
        self._ports.clear()
        self._keeps_port.clear()
        if self._site is not None:
            self._site.api.close()
            shutil.rmtree(self._site.layout.folder, ignore_errors=True)
            self._site = None

    def spawn(
        self, name: str, command: Sequence[str | Path], *, environment: Mapping[str, str] | None = None
    ) -> ManagedProcess:
        """Run a program beside the control plane, its log in `log_folder`; it is stopped before the control plane.

        Args:
            name: name of the program in messages, and of its log.
            command: command line.
            environment: variables added to this process's environment; set KUBECONFIG here.
        """
        process = ManagedProcess(name, command, self.log_folder / f"{name}.log", environment)
        self.run_beside(process)
        return process

    def run_beside(self, process: ManagedProcess) -> None:
        """Start a process beside the control plane; it is stopped before the control plane."""
        process.start()
        self._spawned.append(process)

    # -- places

    @property
    def folder(self) -> Path:
        """The private folder of the control plane's files; it exists from `start` to `close`."""
        return self._open.layout.folder

    @property
    def log_folder(self) -> Path:
        """Folder of the components' logs, NAME.log."""
        return self._given_log_folder or self.folder / "logs"

    @property
    def url(self) -> str:
        """The URL of the API server."""
        return f"https://{self._network.address}:{self.port('kube-apiserver')}"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig file."""
        return self._open.layout.kubeconfig("admin")

    @property
    def authority(self) -> CertificateAuthority:
        """The control plane's certificate authority, which can also issue certificates for test servers."""
        return self._open.authority

    def port(self, name: str) -> int:
        """Return the HTTPS port of a component, for `request`: /metrics, /healthz."""
        if name not in self._ports:
            raise ProcessFailedError(f"{name} has no port: it was never started")
        return self._ports[name]

    def process(self, name: str) -> ManagedProcess:
        """Return the process of the component `name`.

        Raises:
            ProcessFailedError: it was never started.
        """
        if name not in self._processes:
            raise ProcessFailedError(f"{name} was never started; components are {', '.join(COMPONENTS)}")
        return self._processes[name]

    # -- use

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Make one request as administrator; see `AdminApi.request`."""
        return self._open.api.request(method, path, body, **options)

    def create_all(self, path: str, objects: Iterable[Mapping[str, Any]]) -> None:
        """POST many objects to one collection fast: `create_all("/api/v1/namespaces/default/pods", pods)`."""
        self._open.api.create_all(path, list(objects))

    def await_definitions(self) -> None:
        """Wait until all CustomResourceDefinitions are established and served, with schemas accepted as structural.

        Raises:
            NotReachedError: they are not served after two minutes.
        """
        wait_for(
            partial(definitions_are_served, self.request), _DEFINITIONS_S, "all CustomResourceDefinitions are served"
        )

    def create_nodes(self, nodes: Iterable[Mapping[str, Any]]) -> None:
        """Create nodes made by `kwok_node`; they are Ready immediately, and KWOK runs the pods bound to them."""
        self.create_all("/api/v1/nodes", nodes)

    def kubeconfig_for(self, service_account: str, namespace: str, *, duration_s: int = 3600) -> Path:
        """Write a kubeconfig with a token of an existing ServiceAccount, bound and signed as a pod's would be.

        Args:
            service_account: name of the ServiceAccount.
            namespace: namespace of the ServiceAccount and of the kubeconfig.
            duration_s: validity of the token, s; at least 600.

        Raises:
            ApiError: the ServiceAccount does not exist.
        """
        answer = self.request(
            "POST",
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token",
            {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"expirationSeconds": duration_s},
            },
        )
        return write_kubeconfig(
            self._open.layout.kubeconfig(f"{namespace}-{service_account}"),
            server=self.url,
            authority=self._open.authority.certificate,
            user={"token": answer["status"]["token"]},
            namespace=namespace,
        )

    def kubectl(self, *arguments: str | Path, **options: Any) -> str:
        """Run kubectl and return its output; options and errors as in `run`."""
        return self.run("kubectl", *arguments, **options)

    def helm(self, *arguments: str | Path, **options: Any) -> str:
        """Run helm and return its output; options and errors as in `run`."""
        return self.run("helm", *arguments, **options)

    def run(
        self,
        program: str,
        *arguments: str | Path,
        input: str | None = None,
        kubeconfig: Path | None = None,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 120.0,
    ) -> str:
        """Run a program against this control plane to completion and return its output.

        Args:
            program: "kubectl" or "helm".
            arguments: command line arguments.
            input: standard input: `kubectl("apply", "-f", "-", input=manifest)`.
            kubeconfig: kubeconfig to use; None for the administrator's. For a ServiceAccount, see `kubeconfig_for`.
            environment: variables added to this process's environment.
            timeout_s: timeout, s.

        Raises:
            KubectlError: its exit status is not zero.
        """
        command = [str(self._open.layout.binaries[program]), *map(str, arguments)]
        done = subprocess.run(  # noqa: S603 - a binary of ours
            command,
            input=input or "",
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env={**os.environ, **self.environment(kubeconfig), **(environment or {})},
        )
        if done.returncode:
            raise KubectlError([program, *command[1:]], done.returncode, done.stderr)
        return done.stdout

    def environment(self, kubeconfig: Path | None = None) -> dict[str, str]:
        """Environment variables that programs need in addition to this process's: KUBECONFIG and private cache folders.

        PATH begins with the folder of kubectl.
        """
        return {
            "KUBECONFIG": str(kubeconfig or self.kubeconfig),
            "KUBECACHEDIR": str(self.folder / "kubectl-cache"),
            "HELM_CACHE_HOME": str(self.folder / "helm-cache"),
            "HELM_CONFIG_HOME": str(self.folder / "helm-config"),
            "HELM_DATA_HOME": str(self.folder / "helm-data"),
            "PATH": f"{self._open.layout.binaries['kubectl'].parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        }

    def audit_events(self) -> list[dict[str, Any]]:
        """Return all writes so far, oldest first, as audit.k8s.io/v1 Events of level Metadata; requires `audit=True`.

        Each has "verb", "user", "objectRef", "responseStatus" and "requestReceivedTimestamp"; `requestURI` contains the
        field manager. Requests in progress are not included.
        """
        if not self._audit:
            raise ValueError("auditing is off: create the control plane with LocalControlPlane(audit=True)")
        whole, _, _ = self._audit_log.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    # -- inside

    @property
    def _audit_log(self) -> Path:
        return self.log_folder / "audit.jsonl"

    @property
    def _open(self) -> _Site:
        if self._site is None:
            raise ProcessFailedError("the control plane is not started: use it in a `with`, or call start()")
        return self._site

    def _prepare(self) -> _Site:
        binaries = self._given_binaries or obtain(self._report)
        # A short path, because the length of a socket's name is limited.
        folder = Path(tempfile.mkdtemp(prefix="joulie-plane-"))
        atexit.register(self.close)
        authority = CertificateAuthority(folder / "pki", extended=self._extended_certificates)
        clients = {
            name: authority.issue(name, common_name=user, groups=groups) for name, (user, groups) in _CLIENTS.items()
        }
        layout = components.Layout(
            folder=folder,
            binaries=binaries,
            authority=authority.certificate,
            server=authority.issue("server", hosts=self._network.server_hosts),
            service_account=write_service_account_keys(authority.folder),
            kubelet_client=authority.issue("kubelet-client", groups=["system:masters"]),
            front_proxy=authority.issue("front-proxy", common_name=components.FRONT_PROXY),
            network=self._network,
        )
        api = AdminApi(authority.certificate, clients["admin"], self._network.address)
        return _Site(layout, authority, clients, api)

    def _start(self, names: Sequence[str]) -> None:
        for wave in (_STORAGE, COMPONENTS[2:]):
            starting = [name for name in wave if name in names and not self._is_running(name)]
            for name in starting:
                self._launch(name)
            for name in starting:
                self._await_ready(name)
        if "kube-controller-manager" in names and self._is_running("kube-apiserver"):
            wait_for(self._has_default_service_account, _READY_S, "pods can be created in the namespace default")

    def _launch(self, name: str) -> None:
        command = [str(word) for word in self._command(name)]
        process = ManagedProcess(name, command, self.log_folder / f"{name}.log", _RARE_COLLECTION)
        self._processes[name] = process
        process.start()

    def _command(self, name: str) -> list[str]:
        if name == "etcd":
            return components.etcd(self._open.layout)
        if name == "kube-apiserver":
            port = self._ports[name] if name in self._keeps_port else self._choose_port(name)
            self._open.api.port = port
            self._write_kubeconfigs()
            return components.api_server(self._open.layout, port, self._audit_log if self._audit else None)
        port = self._choose_port(name)
        if name == "kube-controller-manager":
            return components.controller_manager(self._open.layout, port)
        if name == "kwok":
            return components.kwok(self._open.layout, port)
        configuration = components.scheduler_configuration(self._open.layout, self._scheduler_configuration)
        self._open.layout.scheduler_configuration.write_text(json.dumps(configuration))
        return components.scheduler(self._open.layout, port)

    def _choose_port(self, name: str) -> int:
        self._ports[name] = free_port()
        return self._ports[name]

    def _write_kubeconfigs(self) -> None:
        for name, identity in self._open.clients.items():
            write_kubeconfig(
                self._open.layout.kubeconfig(name),
                server=self.url,
                authority=self._open.authority.certificate,
                user=certificate_user(identity),
            )

    def _await_ready(self, name: str) -> None:
        if name not in _READY_PATHS:
            return  # etcd: the API server's readiness tells
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            process = self._processes[name]
            try:
                wait_for(partial(self._is_ready, name, process), _READY_S, f"{name} is ready")
            except AssertionError as error:
                raise ProcessFailedError(f"{error}; the end of {process.log}:\n{process.log_tail()}") from error
            except ProcessFailedError:
                # Another program may take the port between its choice and its use.
                if attempt == _PORT_ATTEMPTS or name in self._keeps_port or _PORT_TAKEN not in process.log_tail():
                    raise
                self._launch(name)
            else:
                break
        if name == "kube-apiserver":
            self._keeps_port.add(name)  # kubeconfigs with this port have been handed out

    def _is_ready(self, name: str, process: ManagedProcess) -> bool:
        process.raise_if_ended()
        with contextlib.suppress(ApiError):
            self.request("GET", _READY_PATHS[name], port=self.port(name), timeout_s=_PROBE_S)
            return True
        return False

    def _has_default_service_account(self) -> bool:
        with contextlib.suppress(ApiError):
            self.request("GET", "/api/v1/namespaces/default/serviceaccounts/default")
            return True
        return False

    def _is_running(self, name: str) -> bool:
        return name in self._processes and self._processes[name].running


def _in_order(names: Collection[str]) -> list[str]:
    unknown = set(names) - set(COMPONENTS)
    if unknown:
        raise ValueError(f"unknown components {sorted(unknown)}; there are {', '.join(COMPONENTS)}")
    return [name for name in COMPONENTS if name in names]
