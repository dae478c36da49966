"""GPUs of ResourceClaims, and what in-place resizes allocate."""

import msgspec
import pytest

from joulie.adapters.kubernetes.api.core import Pod
from joulie.adapters.kubernetes.api.devices import ResourceClaim
from joulie.adapters.kubernetes.claims import ClaimedGpus, claimed_gpus, with_claims
from joulie.adapters.kubernetes.pods import PodFacts, pod_facts


def pod(spec: object, **status: object) -> PodFacts:
    meta = {"name": "train-0", "namespace": "ml"}
    return pod_facts(msgspec.convert({"metadata": meta, "spec": spec, "status": status}, Pod))


def device(name: str, driver: str = "gpu.nvidia.com", **more: object) -> dict[str, object]:
    return {"request": "gpus", "driver": driver, "pool": "node-1", "device": name, **more}


def claim(*devices: object, users: int = 1, allocated: bool = True) -> ClaimedGpus | None:
    status: dict[str, object] = {
        "reservedFor": [{"resource": "pods", "name": f"p{index}", "uid": f"u{index}"} for index in range(users)]
    }
    if allocated:
        status["allocation"] = {"devices": {"results": devices}}
    return claimed_gpus(
        msgspec.convert({"metadata": {"name": "c", "namespace": "ml"}, "status": status}, ResourceClaim)
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (claim(device("gpu-0"), device("gpu-1")), ClaimedGpus(2.0, "NVIDIA", 1)),
        (claim(device("gpu-0", "gpu.amd.com")), ClaimedGpus(1.0, "AMD", 1)),
        (claim(device("gpu-0"), device("gpu-0", shareID="x")), ClaimedGpus(1.0, "NVIDIA", 1)),
        (claim(device("gpu-0"), users=4), ClaimedGpus(1.0, "NVIDIA", 4)),
        (claim(device("gpu-0-mig-3g-40gb-0")), ClaimedGpus(3 / 7, "NVIDIA", 1)),
        (claim(device("gpu-0-mig-9-4-4")), ClaimedGpus(0.5, "NVIDIA", 1)),
        (claim(device("gpu-0", adminAccess=True)), None),
        (claim(device("channel-0", "compute-domain.nvidia.com")), None),
        (claim(allocated=False), None),
        (claim(), None),
    ],
)
def test_l14_gpus_of_a_claim(found: ClaimedGpus | None, expected: ClaimedGpus | None) -> None:
    assert found == expected


def test_l14_claims_of_a_pod_by_name_and_from_templates() -> None:
    spec = {
        "resourceClaims": [
            {"name": "own", "resourceClaimName": "shared-gpu"},
            {"name": "made", "resourceClaimTemplateName": "one-gpu"},
            {"name": "not-yet", "resourceClaimTemplateName": "one-gpu"},
            {"name": "not-needed", "resourceClaimTemplateName": "one-gpu"},
        ]
    }
    made = [{"name": "made", "resourceClaimName": "train-0-made-x7z"}, {"name": "not-needed"}]
    assert pod(spec, resourceClaimStatuses=made).claims == ("shared-gpu", "train-0-made-x7z")


def test_l14_claimed_gpus_are_requests_and_go_with_their_claim() -> None:
    plain = pod({"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]})
    claimed = with_claims(plain, [ClaimedGpus(4.0, "NVIDIA", 2), ClaimedGpus(1.0, "NVIDIA", 1)])
    assert (claimed.requests.gpus, claimed.requests.gpu_vendor, claimed.requests.cpu_cores) == (3.0, "NVIDIA", 2.0)
    assert with_claims(claimed, [ClaimedGpus(1.0, "AMD", 1)]).requests.gpus == 1.0
    assert with_claims(claimed, []) == plain


def test_l14_claimed_gpus_come_on_top_of_those_of_a_device_plugin() -> None:
    own = pod({"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]})
    assert with_claims(own, [ClaimedGpus(1.0, "NVIDIA", 1)]).requests.gpus == 3.0
    assert with_claims(with_claims(own, [ClaimedGpus(1.0, "NVIDIA", 1)]), []) == own


def test_l14_what_the_node_has_allocated_counts_during_an_in_place_resize() -> None:
    spec = {
        "containers": [
            {"name": "main", "resources": {"requests": {"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": "1"}}},
            {"name": "plain", "resources": {"requests": {"cpu": "1"}}},
        ],
        "initContainers": [
            {"name": "sidecar", "restartPolicy": "Always", "resources": {"requests": {"cpu": "3"}}},
        ],
    }
    status = {
        "containerStatuses": [
            {"name": "main", "allocatedResources": {"cpu": "2", "memory": "4Gi"}},
            {"name": "plain"},
        ],
        "initContainerStatuses": [{"name": "sidecar", "allocatedResources": {"cpu": "500m"}}],
    }
    requests = pod(spec, **status).requests
    assert (requests.cpu_cores, requests.memory_gib, requests.gpus) == (3.5, 4.0, 1.0)
