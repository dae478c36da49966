import asyncio
import base64
import json
import logging
import os
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest

from joulie.adapters.kubernetes.client import ConfigurationError, ConnectionLostError, KubeClient, UnauthorizedError
from joulie.adapters.kubernetes.connection import Connection, connect
from joulie.adapters.kubernetes.exec_plugin import ExecPlugin
from joulie_lab.control_plane.certificates import CertificateAuthority
from support.scripted_server import QUICK, Answer, Request, kubeconfig, serving

OK = b'{"gitVersion": "v1"}'
SECRET = "hunter2-very-secret"


class Recorder:
    """Answers all requests the same, 401 to those whose authorization is among the rejected."""

    def __init__(self, *rejected: str) -> None:
        self.requests: list[Request] = []
        self.rejected = {f"Bearer {token}" for token in rejected}

    async def __call__(self, request: Request, answer: Answer) -> None:
        self.requests.append(request)
        await answer.whole(401 if request.headers.get("authorization") in self.rejected else 200, OK)


def talk_to(connection: Connection, times: int = 1) -> Any:
    async def main() -> None:
        async with KubeClient(connection, retry=QUICK) as client:
            for _ in range(times):
                assert await client.version() == "v1"

    return main()


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# ---- where the cluster is


def test_a_given_file_comes_before_all_else(tmp_path: Path) -> None:
    given = write(tmp_path / "given", kubeconfig("https://given"))
    listed = write(tmp_path / "listed", kubeconfig("https://listed"))
    assert connect(kubeconfig=given, environ={"KUBECONFIG": str(listed)}).server == "https://given"
    assert connect(environ={"KUBECONFIG": str(listed)}).server == "https://listed"


def service_account(folder: Path) -> dict[str, str]:
    for name, text in (("token", "t1\n"), ("namespace", "power"), ("ca.crt", "")):
        write(folder / name, text)
    return {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}


def test_a_pods_own_account_comes_after_kubeconfig_and_before_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = service_account(tmp_path / "account")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / ".kube/config", kubeconfig("https://home", name="home"))
    found = connect(environ=environ, service_account_dir=tmp_path / "account")
    assert (found.server, found.namespace, found.source) == (
        "https://[fd00::1]:443",
        "power",
        "the pod's service account",
    )
    listed = write(tmp_path / "listed", kubeconfig("https://listed"))
    environ["KUBECONFIG"] = str(listed)
    assert connect(environ=environ, service_account_dir=tmp_path / "account").server == "https://listed"
    assert connect(environ={}, service_account_dir=tmp_path / "account").server == "https://home"
    # A context can only mean a file.
    del environ["KUBECONFIG"]
    assert connect(environ=environ, context="home", service_account_dir=tmp_path / "account").server == "https://home"


def test_nothing_found_says_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"KUBECONFIG is not set.*give --kubeconfig FILE"):
        connect(environ={}, service_account_dir=tmp_path)


def test_several_files_merge_and_the_first_wins(tmp_path: Path) -> None:
    first = write(tmp_path / "a/config", kubeconfig("https://first", name="shared"))
    second = write(tmp_path / "b/config", kubeconfig("https://second", name="shared"))
    third = write(tmp_path / "c/config", kubeconfig("https://third", name="other"))
    environ = {"KUBECONFIG": os.pathsep.join(map(str, (tmp_path / "absent", first, second, third)))}
    assert connect(environ=environ).server == "https://first"
    assert connect(environ=environ, context="other").server == "https://third"


def test_an_unknown_context_names_those_there_are(tmp_path: Path) -> None:
    file = write(tmp_path / "config", kubeconfig("https://x"))
    with pytest.raises(ConfigurationError, match="'prod' not found; contexts there: test"):
        connect(kubeconfig=file, context="prod", environ={})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("users: [{name: a, user: {token: hunter2-very-secret", "invalid YAML, line 1"),
        ("just text", "must be a mapping"),
        ("current-context: a\ncontexts: [{name: a, context: {cluster: c}}]", "no entry 'c'"),
        ("{}", "No current context"),
    ],
)
def test_broken_files_are_named_without_their_content(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path / "config", text)
    with pytest.raises(ConfigurationError, match=message) as raised:
        connect(kubeconfig=file, environ={})
    assert str(file) in str(raised.value)
    assert SECRET not in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="absent: no such file"):
        connect(kubeconfig=tmp_path / "absent", environ={})


@pytest.mark.parametrize(
    ("user", "message"),
    [
        ("{auth-provider: {name: gcp}}", "use an exec plugin"),
        ("{exec: {apiVersion: client.authentication.k8s.io/v1alpha1, command: x}}", "supported: client.auth"),
        ("{as: alice, as-user-extra: {a: [b]}}", "as-user-extra is not supported"),
    ],
)
def test_what_cannot_be_served_is_refused(tmp_path: Path, user: str, message: str) -> None:
    file = write(tmp_path / "config", kubeconfig("https://x", user=user))
    with pytest.raises(ConfigurationError, match=message):
        connect(kubeconfig=file, environ={})


def test_a_url_that_is_none_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "config", kubeconfig("example.com:6443"))
    with pytest.raises(ConfigurationError, match=r"server 'example\.com:6443'"):
        connect(kubeconfig=file, environ={})


# ---- credentials


def test_a_token_file_beside_the_kubeconfig_is_read_again_when_rejected(tmp_path: Path) -> None:
    server = Recorder()
    token = write(tmp_path / "token", "old\n")

    async def main() -> None:
        async with serving(server) as url:
            file = write(tmp_path / "config", kubeconfig(url, user="{tokenFile: token}"))
            async with KubeClient(connect(kubeconfig=file, environ={}), retry=QUICK) as client:
                await client.version()
                token.write_text("new\n")
                server.rejected = {"Bearer old"}
                await client.version()
                token.unlink()
                server.rejected = {"Bearer new"}
                with pytest.raises(ConfigurationError, match="Token file"):
                    await client.version()

    asyncio.run(main())
    assert [request.headers["authorization"] for request in server.requests[:3]] == [
        "Bearer old",
        "Bearer old",
        "Bearer new",
    ]


def test_impersonation_is_never_silently_dropped(tmp_path: Path) -> None:
    server = Recorder()

    async def main() -> None:
        async with serving(server) as url:
            user = "{token: t, as: 'system:serviceaccount:a:b', as-groups: [g1]}"
            file = write(tmp_path / "config", kubeconfig(url, user=user))
            await talk_to(connect(kubeconfig=file, environ={}))

    asyncio.run(main())
    headers = server.requests[0].headers
    assert (headers["impersonate-user"], headers["impersonate-group"]) == ("system:serviceaccount:a:b", "g1")


def test_secrets_stay_out_of_messages(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    user = f"{{token: {SECRET}, username: u, password: {SECRET}}}"
    file = write(tmp_path / "config", kubeconfig("http://127.0.0.1:1", user=user))
    connection = connect(kubeconfig=file, environ={})
    with caplog.at_level(logging.DEBUG), pytest.raises(ConnectionLostError) as raised:
        asyncio.run(talk_to(connection))
    assert SECRET not in repr(connection) + repr(raised.value) + caplog.text


# ---- exec plugins

PLUGIN = """
import json, os, pathlib, sys
folder = pathlib.Path(sys.argv[1])
runs = folder / "runs"
count = int(runs.read_text()) + 1 if runs.exists() else 1
runs.write_text(str(count))
(folder / "info").write_text(os.environ["KUBERNETES_EXEC_INFO"])
status = json.loads((folder / "status").read_text())
status = {key: value.replace("COUNT", str(count)) for key, value in status.items()}
print(json.dumps({"apiVersion": os.environ["VERSION"], "kind": "ExecCredential", "status": status}))
"""


def plugin_user(folder: Path, status: dict[str, str], version: str = "v1", more: str = "") -> str:
    write(folder / "plugin.py", PLUGIN)
    write(folder / "status", json.dumps(status))
    version = f"client.authentication.k8s.io/{version}"
    return (
        f"{{exec: {{apiVersion: {version}, command: '{sys.executable}', args: ['{folder}/plugin.py', '{folder}'], "
        f"env: [{{name: VERSION, value: {version}}}], interactiveMode: Never{more}}}}}"
    )


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_plugins_token_is_kept_until_it_expires(tmp_path: Path, version: str) -> None:
    server = Recorder()
    status = {"token": "token-COUNT", "expirationTimestamp": "2999-01-01T00:00:00Z"}

    async def main() -> None:
        async with serving(server) as url:
            file = write(tmp_path / "config", kubeconfig(url, user=plugin_user(tmp_path, status, version)))
            await talk_to(connect(kubeconfig=file, environ={}), times=3)

    asyncio.run(main())
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer token-1"}


def test_an_expired_token_is_renewed_before_it_is_used(tmp_path: Path) -> None:
    server = Recorder()
    status = {"token": "token-COUNT", "expirationTimestamp": "2001-01-01T00:00:00Z"}

    async def main() -> None:
        async with serving(server) as url:
            file = write(tmp_path / "config", kubeconfig(url, user=plugin_user(tmp_path, status)))
            await talk_to(connect(kubeconfig=file, environ={}), times=2)

    asyncio.run(main())
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer token-1", "Bearer token-2"]


def test_a_rejected_token_makes_the_plugin_run_once_more_and_then_gives_up(tmp_path: Path) -> None:
    server = Recorder("token-1", "token-3", "token-4")

    async def main() -> None:
        async with serving(server) as url:
            file = write(tmp_path / "config", kubeconfig(url, user=plugin_user(tmp_path, {"token": "token-COUNT"})))
            async with KubeClient(connect(kubeconfig=file, environ={}), retry=QUICK) as client:
                await asyncio.gather(*(client.version() for _ in range(5)))
                server.rejected.add("Bearer token-2")
                with pytest.raises(UnauthorizedError, match="exec plugin"):
                    await client.version()

    asyncio.run(main())
    assert (tmp_path / "runs").read_text() == "3"


def test_a_plugin_is_told_about_the_cluster_if_it_asks(tmp_path: Path) -> None:
    async def main() -> str:
        async with serving(Recorder()) as url:
            user = plugin_user(tmp_path, {"token": "t"}, more=", provideClusterInfo: true")
            cluster = (
                ", certificate-authority-data: '', tls-server-name: inside, "
                "extensions: [{name: client.authentication.k8s.io/exec, extension: {audience: me}}]"
            )
            file = write(tmp_path / "config", kubeconfig(url, cluster=cluster, user=user))
            await talk_to(connect(kubeconfig=file, environ={}))
            return url

    url = asyncio.run(main())
    info = json.loads((tmp_path / "info").read_text())
    assert (info["kind"], info["apiVersion"]) == ("ExecCredential", "client.authentication.k8s.io/v1")
    assert info["spec"]["interactive"] is False
    assert info["spec"]["cluster"]["server"] == url
    assert info["spec"]["cluster"]["tls-server-name"] == "inside"
    assert info["spec"]["cluster"]["config"] == {"audience": "me"}


def run_plugin(code: str) -> None:
    version = "client.authentication.k8s.io/v1"
    plugin = ExecPlugin(sys.executable, ("-c", code), {}, api_version=version)
    asyncio.run(plugin.credential())


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys; sys.exit(3)", "failed with exit status 3"),
        (f"print('{SECRET}')", "printed an invalid ExecCredential"),
        ('print(\'{"apiVersion": "v9", "kind": "ExecCredential"}\')', "printed v9 ExecCredential"),
        ("STATUS", "neither a token nor a certificate"),
        ("STATUS clientKeyData", "a certificate without its key, or a key without"),
    ],
)
def test_a_plugin_that_misbehaves_is_named_and_not_quoted(code: str, message: str) -> None:
    if code.startswith("STATUS"):
        status = dict.fromkeys(code.split()[1:], SECRET)
        answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
        code = f"print({json.dumps(json.dumps(answer))})"
    with pytest.raises(ConfigurationError, match=message) as raised:
        run_plugin(code)
    assert SECRET not in str(raised.value)


def test_a_plugin_that_is_not_there_gives_its_own_hint() -> None:
    config = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "/nowhere/plugin",
        "interactiveMode": "Never",
        "installHint": "get it at the help desk",
    }
    with pytest.raises(ConfigurationError, match=r"/nowhere/plugin: No such file.*get it at the help desk"):
        asyncio.run(ExecPlugin.from_config(config, {}).credential())


def test_a_plugin_that_needs_a_terminal_is_refused_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    config = {"apiVersion": "client.authentication.k8s.io/v1", "command": "x", "interactiveMode": "Always"}
    with pytest.raises(ConfigurationError, match="needs a terminal"):
        ExecPlugin.from_config(config, {})


# ---- TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("authority"))


def server_tls(authority: CertificateAuthority, *hosts: str) -> ssl.SSLContext:
    issued = authority.issue("server", hosts=hosts)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_cert_chain(issued.certificate, issued.key)
    return context


def test_a_server_under_another_name_is_verified_by_tls_server_name(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    async def main() -> None:
        async with serving(Recorder(), server_tls(authority, "kubernetes.inside")) as url:
            trusted = f", certificate-authority: '{authority.certificate}'"
            file = write(tmp_path / "config", kubeconfig(url, cluster=f"{trusted}, tls-server-name: kubernetes.inside"))
            await talk_to(connect(kubeconfig=file, environ={}))
            file = write(tmp_path / "config", kubeconfig(url, cluster=trusted))
            with pytest.raises(ConnectionLostError, match="check the server address") as raised:
                await talk_to(connect(kubeconfig=file, environ={}))
            assert raised.value.permanent

    asyncio.run(main())


def test_not_verifying_is_done_only_when_asked_and_warned_of(
    tmp_path: Path, authority: CertificateAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(Recorder(), server_tls(authority, "other")) as url:
            file = write(tmp_path / "config", kubeconfig(url))
            with pytest.raises(ConnectionLostError):
                await talk_to(connect(kubeconfig=file, environ={}))
            file = write(tmp_path / "config", kubeconfig(url, cluster=", insecure-skip-tls-verify: true"))
            await talk_to(connect(kubeconfig=file, environ={}))

    asyncio.run(main())
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        "the API server's certificate is not verified"
    ]


def test_no_authorities_are_read_for_a_server_without_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[bool] = []

    def context(*, verify: bool, trust_env: bool) -> ssl.SSLContext:
        del trust_env
        verified.append(verify)
        return ssl.create_default_context()

    monkeypatch.setattr("lightkube.config.client_adapter.httpx.create_ssl_context", context)
    for server in ("http://plain", "https://secure"):
        connect(kubeconfig=write(tmp_path / "config", kubeconfig(server)))._new_client(None)
    assert verified == [False, True]


def test_a_certificate_that_a_plugin_renews_is_used_from_the_next_request_on(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    server = Recorder()

    def issue(name: str) -> None:
        issued = authority.issue(name)
        status = {"clientCertificateData": issued.certificate.read_text(), "clientKeyData": issued.key.read_text()}
        status["expirationTimestamp"] = "2001-01-01T00:00:00Z"
        (tmp_path / "status").write_text(json.dumps(status))

    async def main() -> None:
        async with serving(server, server_tls(authority, "127.0.0.1")) as url:
            user = plugin_user(tmp_path, {})
            cluster = f", certificate-authority: '{authority.certificate}'"
            file = write(tmp_path / "config", kubeconfig(url, cluster=cluster, user=user))
            async with KubeClient(connect(kubeconfig=file, environ={}), retry=QUICK) as client:
                for name in ("alice", "bob"):
                    issue(name)
                    await client.version()

    asyncio.run(main())
    assert [request.peer for request in server.requests] == ["alice", "bob"]


def test_a_kubeconfigs_client_certificate_is_used(tmp_path: Path, authority: CertificateAuthority) -> None:
    server = Recorder()
    issued = authority.issue("carol")

    async def main() -> None:
        async with serving(server, server_tls(authority, "127.0.0.1")) as url:
            cluster = f", certificate-authority: '{authority.certificate}'"
            user = f"{{client-certificate: '{issued.certificate}', client-key: '{issued.key}'}}"
            await talk_to(
                connect(kubeconfig=write(tmp_path / "c", kubeconfig(url, cluster=cluster, user=user)), environ={})
            )

    asyncio.run(main())
    assert server.requests[0].peer == "carol"


@pytest.fixture
def strict_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts as Python 3.13 and later make them, whatever this one is."""
    usual = ssl.create_default_context

    def create(*given: Any, **options: Any) -> ssl.SSLContext:
        context = usual(*given, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", create)


@pytest.mark.usefixtures("strict_python")
@pytest.mark.parametrize("extended", [True, False], ids=["strict", "as EKS issues"])
def test_r1_clusters_certificates_are_taken_as_kubectl_takes_them(tmp_path: Path, extended: bool) -> None:
    issuer = CertificateAuthority(tmp_path / "ca", extended=extended)
    other = CertificateAuthority(tmp_path / "other", extended=extended)
    embedded = base64.b64encode(issuer.certificate.read_bytes()).decode()

    async def main() -> None:
        async with serving(Recorder(), server_tls(issuer, "127.0.0.1")) as url:
            for trusted in (
                f"certificate-authority: '{issuer.certificate}'",
                f"certificate-authority-data: {embedded}",
            ):
                file = write(tmp_path / "config", kubeconfig(url, cluster=f", {trusted}"))
                await talk_to(connect(kubeconfig=file, environ={}))
            # The chain and the name are verified as before.
            wrong = f", certificate-authority: '{other.certificate}'"
            with pytest.raises(ConnectionLostError, match="CERTIFICATE_VERIFY_FAILED"):
                await talk_to(connect(kubeconfig=write(tmp_path / "wrong", kubeconfig(url, cluster=wrong)), environ={}))
            named = f", certificate-authority: '{issuer.certificate}', tls-server-name: elsewhere"
            with pytest.raises(ConnectionLostError, match="CERTIFICATE_VERIFY_FAILED"):
                await talk_to(connect(kubeconfig=write(tmp_path / "named", kubeconfig(url, cluster=named)), environ={}))

    asyncio.run(main())


def test_r8_a_rotated_authority_is_read_again_without_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first, second = (CertificateAuthority(tmp_path / name) for name in ("first", "second"))
    trusted = write(tmp_path / "account/ca.crt", first.certificate.read_text())

    def mount(text: str) -> None:
        """Replace the file as a kubelet does, by another one under its name."""
        write(tmp_path / "new", text).replace(trusted)

    async def main() -> None:
        old, new = Recorder(), Recorder()
        async with serving(old, server_tls(first, "127.0.0.1")) as url:
            file = write(tmp_path / "config", kubeconfig(url, cluster=f", certificate-authority: '{trusted}'"))
            connection = connect(kubeconfig=file, environ={})
            client = KubeClient(connection, retry=QUICK)
            await client.version()
            # A file that is being written, or is gone: what was read serves on.
            mount("half a certi")
            await client.version()
            trusted.unlink()
            await client.version()
        async with client, serving(new, server_tls(second, "127.0.0.1")) as url:
            connection.server = url
            with pytest.raises(ConnectionLostError, match="CERTIFICATE_VERIFY_FAILED"):
                await client.version()
            mount(second.certificate.read_text())
            await client.version()
            await client.version()
        assert (len(old.requests), len(new.requests)) == (3, 2)

    asyncio.run(main())
    told = [record.message for record in caplog.records if record.message.startswith("certificates")]
    assert told == ["certificates not reloaded"] * 2 + ["certificates reloaded"]


def test_r8_a_rotated_token_is_read_again_without_a_restart(tmp_path: Path) -> None:
    token = write(tmp_path / "token", "first")
    server = Recorder()

    async def main() -> None:
        async with serving(server) as url:
            file = write(tmp_path / "config", kubeconfig(url, user=f"{{tokenFile: '{token}'}}"))
            async with KubeClient(connect(kubeconfig=file, environ={}), retry=QUICK) as client:
                await client.version()
                server.rejected.add("Bearer first")
                token.write_text("second")
                await client.version()

    asyncio.run(main())
    assert [request.headers["authorization"] for request in server.requests] == [
        "Bearer first",
        "Bearer first",
        "Bearer second",
    ]


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    file = write(tmp_path / "c", kubeconfig("https://127.0.0.1:1", cluster=", certificate-authority: absent.crt"))
    with pytest.raises(ConfigurationError, match="cannot use the credentials or certificates"):
        asyncio.run(talk_to(connect(kubeconfig=file, environ={})))


# ---- proxies


def test_a_clusters_proxy_is_used(tmp_path: Path) -> None:
    proxy = Recorder()

    async def main() -> None:
        async with serving(proxy) as url:
            file = write(tmp_path / "c", kubeconfig("http://cluster.example", cluster=f", proxy-url: '{url}'"))
            await talk_to(connect(kubeconfig=file, environ={}))

    asyncio.run(main())
    assert proxy.requests[0].headers["host"] == "cluster.example"


def test_the_environments_proxy_is_used_except_for_what_it_excludes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, direct = Recorder(), Recorder()

    async def main() -> None:
        async with serving(proxy) as proxy_url, serving(direct) as url:
            monkeypatch.setenv("HTTP_PROXY", proxy_url)
            monkeypatch.setenv("NO_PROXY", "127.0.0.0/8")
            file = write(tmp_path / "a", kubeconfig("http://10.1.2.3"))
            await talk_to(connect(kubeconfig=file, environ={}))
            file = write(tmp_path / "b", kubeconfig(url))
            await talk_to(connect(kubeconfig=file, environ={}))

    asyncio.run(main())
    assert (len(proxy.requests), len(direct.requests)) == (1, 1)
