"""A sweep on Dask pods, as documented: every digit of one on local cores, though a worker is killed.

Scheduler, workers and the sweep's Job are those of docs/howto/dask.yaml, from the laboratory's image.
"""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from joulie_lab.control_plane import wait_for
from joulie_lab.control_plane.node import images
from joulie_lab.control_plane.node.prepared import LAB_ARCHIVE, folder_of
from support.loop import PODS
from support.real_site import PATIENCE_S, Site, is_ready

MANIFEST = Path(__file__).parents[2] / "docs/howto/dask.yaml"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
JOB = "joulie-sweep"
SWEEP_S = 900.0
"""For what compiles the simulation, in each worker, on a busy machine."""
IMPORT_S = 600.0
LOOK = """
import json, distributed
with distributed.Client("tcp://dask-scheduler:8786") as client:
    print(json.dumps({address: len(tasks) for address, tasks in client.processing().items()}))
"""


class DaskPods:
    """The pods of the manifest."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def pods(self, component: str) -> list[dict[str, Any]]:
        """Those of one component."""
        labels = f"app.kubernetes.io%2Fpart-of%3Djoulie-dask,app.kubernetes.io%2Fcomponent%3D{component}"
        items: list[dict[str, Any]] = self._site.plane.request("GET", f"{PODS}?labelSelector={labels}")["items"]
        return items

    def execute(self, pod: dict[str, Any], *command: str, timeout_s: float = PATIENCE_S) -> str:
        """Run a command in a pod."""
        return self._site.plane.kubectl("exec", pod["metadata"]["name"], "--", *command, timeout_s=timeout_s)

    def await_scheduler(self) -> None:
        """Wait until it answers."""

        def answers() -> bool:
            pods = self.pods("scheduler")
            assert [is_ready(pod) for pod in pods] == [True], f"{pods}: {self._site.troubles()[-8:]}"
            return True

        wait_for(answers, PATIENCE_S, "the scheduler answers")

    def tasks(self) -> dict[str, int]:
        """How many tasks each worker has that the scheduler waits for, by the address of its pod."""
        (scheduler,) = self.pods("scheduler")
        found = json.loads(self.execute(scheduler, "python", "-c", LOOK))
        return {address.removeprefix("tcp://").rpartition(":")[0]: n_tasks for address, n_tasks in found.items()}

    def busy_worker(self) -> dict[str, Any]:
        """A worker that has a task.

        Raises:
            AssertionError: there is none.
        """
        tasks = self.tasks()
        workers = [pod for pod in self.pods("worker") if tasks.get(pod["status"].get("podIP", ""))]
        assert workers, f"{tasks}: {[pod['status'] for pod in self.pods('client')]}"
        return workers[0]

    def await_result(self) -> dict[str, Any]:
        """What the Job has printed, when it is complete."""

        def ended() -> set[str]:
            status = self._site.plane.request("GET", f"{JOBS}/{JOB}")["status"]
            true = {one["type"] for one in status.get("conditions", ()) if one["status"] == "True"}
            assert true & {"Complete", "Failed"}, f"{status}, {[pod['status'] for pod in self.pods('client')]}"
            return true

        assert "Complete" in wait_for(ended, SWEEP_S, "the sweep has ended"), self._site.troubles()[-8:]
        (client,) = self.pods("client")
        return document(self._site.logs(client))

    def await_restarted(self, worker: dict[str, Any]) -> None:
        """Wait until a killed worker runs again, and the scheduler knows it beside the other."""

        def is_back() -> bool:
            (status,) = self._site.find_pod(worker["metadata"]["name"])["status"]["containerStatuses"]
            assert status["restartCount"] >= 1, status
            assert {pod["status"].get("podIP") for pod in self.pods("worker")} == self.tasks().keys()
            return True

        wait_for(is_back, PATIENCE_S, "the killed worker is back")


def document(text: str) -> dict[str, Any]:
    """The JSON after the lines of progress, without the times that runs took."""
    found: dict[str, Any] = json.loads(text[f"\n{text}".index("\n{\n") :])
    for run in found["runs"]:
        del run["seconds"]
    return found


@pytest.fixture(scope="module")
def dask(site: Site) -> Iterator[DaskPods]:
    """The manifest is applied: its scheduler answers."""
    manifests = list(yaml.safe_load_all(MANIFEST.read_text()))
    (image,) = {
        container["image"]
        for manifest in manifests
        for container in manifest["spec"].get("template", {}).get("spec", {}).get("containers", ())
    }
    site.node.ctr("images", "import", "--snapshotter=overlayfs", folder_of() / LAB_ARCHIVE, timeout_s=IMPORT_S)
    site.node.ctr("images", "tag", images.LAB, image)
    site.plane.kubectl("apply", "-f", MANIFEST)
    pods = DaskPods(site)
    pods.await_scheduler()
    yield pods
    site.plane.kubectl("delete", "-f", MANIFEST, "--now", "--wait")


def test_a_sweep_on_dask_pods_is_that_on_local_cores_though_a_worker_is_killed(dask: DaskPods, site: Site) -> None:
    worker = wait_for(dask.busy_worker, SWEEP_S, "a worker runs")
    address = worker["status"]["podIP"]
    site.node.kill(worker, signal.SIGSTOP)  # so that what it has is not finished when it is killed
    assert dask.tasks()[address] > 0
    site.node.kill(worker)
    found = dask.await_result()
    dask.await_restarted(worker)
    (job,) = [one for one in yaml.safe_load_all(MANIFEST.read_text()) if one["kind"] == "Job"]
    words = job["spec"]["template"]["spec"]["containers"][0]["args"]
    there = [word for word in words if word.startswith("--executor=dask")]
    here = [word for word in words if word not in there and not word.startswith("--state")]
    assert len(there) == 1
    (other,) = [pod for pod in dask.pods("worker") if pod["metadata"]["name"] != worker["metadata"]["name"]]
    # One that has compiled what runs need.
    local = dask.execute(other, "joulie", *here, "--state=/tmp/local.jsonl", "--jobs=2", timeout_s=SWEEP_S)
    assert found == document(local)
    assert len(found["runs"]) == 16
