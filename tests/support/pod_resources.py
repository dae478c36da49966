"""A kubelet's PodResources endpoint: gRPC over a unix socket, with messages that the protobuf library encodes.

Its descriptors follow k8s.io/kubelet/pkg/apis/podresources/v1/api.proto, fields that Joulie does not read included.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from support.grpc_socket import Answer, message_classes, serving

_RESPONSE = message_classes(
    "v1",
    {
        "ListPodResourcesResponse": [("pod_resources", 1, "PodResources*")],
        "PodResources": [
            ("name", 1, "string"),
            ("namespace", 2, "string"),
            ("containers", 3, "ContainerResources*"),
            ("cpu_ids", 4, "int64*"),
        ],
        "ContainerResources": [
            ("name", 1, "string"),
            ("devices", 2, "ContainerDevices*"),
            ("cpu_ids", 3, "int64*"),
            ("memory", 4, "ContainerMemory*"),
            ("dynamic_resources", 5, "DynamicResource*"),
        ],
        "ContainerMemory": [("memory_type", 1, "string"), ("size", 2, "uint64")],
        "ContainerDevices": [
            ("resource_name", 1, "string"),
            ("device_ids", 2, "string*"),
            ("topology", 3, "TopologyInfo"),
        ],
        "TopologyInfo": [("nodes", 1, "NUMANode*")],
        "NUMANode": [("ID", 1, "int64")],
        "DynamicResource": [
            ("claim_name", 2, "string"),
            ("claim_namespace", 3, "string"),
            ("claim_resources", 4, "ClaimResource*"),
        ],
        "ClaimResource": [
            ("cdi_devices", 1, "CDIDevice*"),
            ("driver_name", 2, "string"),
            ("pool_name", 3, "string"),
            ("device_name", 4, "string"),
        ],
        "CDIDevice": [("name", 1, "string")],
    },
)["ListPodResourcesResponse"]


def response(pods: Mapping[tuple[str, str], Mapping[str, Sequence[str]]]) -> bytes:
    """Bytes of a ListPodResourcesResponse: device IDs by resource, by namespace and name of a pod.

    A resource ``driver.example.com/claim`` ending in ``/claim`` is a DRA claim of devices of that driver.
    """
    message = _RESPONSE()
    for (namespace, name), resources in pods.items():
        pod = message.pod_resources.add(name=name, namespace=namespace)
        container = pod.containers.add(name="main", cpu_ids=[0, 1, 2**40])
        container.memory.add(memory_type="memory", size=2**35)
        for resource, ids in resources.items():
            if resource.endswith("/claim"):
                claim = container.dynamic_resources.add(claim_name="gpus", claim_namespace=namespace)
                for device in ids:
                    driver = resource.removesuffix("/claim")
                    made = claim.claim_resources.add(driver_name=driver, pool_name="node", device_name=device)
                    made.cdi_devices.add(name=f"k8s.{driver}/claim={device}")
                continue
            devices = container.devices.add(resource_name=resource, device_ids=ids)
            devices.topology.nodes.add(ID=1)
    data: bytes = message.SerializeToString()
    return data


class PodResourcesSocket:
    """A kubelet that answers with `pods`, or fails with `error`."""

    def __init__(self) -> None:
        self.pods: Mapping[tuple[str, str], Mapping[str, Sequence[str]]] = {}
        self.error: str | None = None
        self.calls = 0

    def answer(self, _method: str, _message: bytes) -> Answer | str:
        """Answer every call alike."""
        self.calls += 1
        return Answer(response(self.pods)) if self.error is None else self.error


@contextlib.contextmanager
def kubelet_socket(path: Path) -> Iterator[PodResourcesSocket]:
    """Serve PodResources on a socket, in a thread of its own."""
    kubelet = PodResourcesSocket()
    with serving(path, kubelet.answer):
        yield kubelet
