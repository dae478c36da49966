"""A real Prometheus of a test's own, which can be killed and started again."""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from joulie_lab.control_plane import ManagedProcess, wait_for
from joulie_lab.control_plane.ports import free_port

INTERVAL_S = 0.5
"""Of the scrapes."""

_PATIENCE_S = 60.0


class PrometheusServer:
    """A server that scrapes twice a second; its data and its port outlive its restarts.

    Attributes:
        address: such as "http://127.0.0.1:12345".
        process: the server's.
    """

    def __init__(
        self, program: Path, folder: Path, *, web: Mapping[str, Any] | None = None, host: str = "127.0.0.1"
    ) -> None:
        """Prepare in an empty folder; `start` runs it.

        Args:
            program: path of the server.
            folder: for its configuration, its data and its log.
            web: its web configuration, with TLS and users; none where not given.
            host: address that it listens on.
        """
        self._configuration = folder / "prometheus.json"
        web_configuration = folder / "web.json"
        self._configure([])
        web_configuration.write_text(json.dumps(web or {}))
        port = free_port()
        self.address = f"http{'s' if web else ''}://{host}:{port}"
        command = [
            program,
            f"--config.file={self._configuration}",
            f"--web.config.file={web_configuration}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={host}:{port}",
            "--storage.tsdb.retention.time=1h",
            "--log.level=warn",
        ]
        self.process = ManagedProcess("prometheus", command, folder / "prometheus.log")

    def start(self, jobs: Sequence[Mapping[str, Any]] | None = None, *, wait: bool = True) -> None:
        """Run it.

        Args:
            jobs: scrape configurations; as before where not given.
            wait: for `wait_until_up`, which takes five seconds where there are targets.
        """
        if jobs is not None:
            self._configure(jobs)
        self.process.start()
        if wait:
            self.wait_until_up()

    def wait_until_up(self) -> None:
        """Wait until it answers, has scraped every target and found each of them up."""
        wait_for(self._ready, _PATIENCE_S, "Prometheus is ready")
        wait_for(self._all_up, _PATIENCE_S, "Prometheus has scraped every target")

    def _configure(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        interval = f"{INTERVAL_S * 1000:.0f}ms"
        times = {"scrape_interval": interval, "scrape_timeout": interval}
        # JSON is YAML.
        self._configuration.write_text(json.dumps({"global": times, "scrape_configs": list(jobs)}))

    def query(self, promql: str) -> list[dict[str, Any]]:
        """The result of an instant query, as the API has it."""
        return list(self._get("/api/v1/query?" + urllib.parse.urlencode({"query": promql}))["data"]["result"])

    def wait_for_samples(self, selector: str, count: int) -> None:
        """Wait until there are series of `selector`, each with as many samples of the last minute."""

        def enough() -> bool:
            counts = [int(one["value"][1]) for one in self.query(f"count_over_time({selector}[1m])")]
            return bool(counts) and min(counts) >= count

        wait_for(enough, _PATIENCE_S, f"{selector} has {count} samples")

    def scrapes(self) -> int:
        """How often it has scraped the target that it scraped least; 0 before it has scraped any."""
        counts = [int(one["value"][1]) for one in self.query("count_over_time(up[1h])")]
        return min(counts, default=0)

    def wait_for_scrapes(self, more: int = 1) -> None:
        """Wait until it has scraped every target so many times more."""
        wanted = self.scrapes() + more
        wait_for(lambda: self.scrapes() >= wanted, _PATIENCE_S, f"{more} more scrapes of every target")

    def queries_answered(self) -> int:
        """How many queries it has answered so far, whoever asked."""
        with urllib.request.urlopen(f"{self.address}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        name = "prometheus_http_requests_total{"
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith(name) and "/api/v1/query" in line)

    def _ready(self) -> bool:
        self.process.raise_if_ended()
        try:
            with urllib.request.urlopen(f"{self.address}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _all_up(self) -> bool:
        targets = self._get("/api/v1/targets")["data"]["activeTargets"]
        assert all(one["health"] == "up" for one in targets), [one["lastError"] for one in targets]
        return True

    def _get(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(f"{self.address}{path}", timeout=10) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.code}: {error.read().decode(errors='replace')}") from error
