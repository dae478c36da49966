"""A device plugin of modelled GPUs: it tells a kubelet their UUIDs and keeps which of them the kubelet gave away.

Messages and calls follow k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto; what a pod gets for a GPU is the
environment variable of NVIDIA's plugin.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.grpc_socket import Answer, call, message_classes, serving

SOCKETS = Path("/var/lib/kubelet/device-plugins")
"""Where kubelets look for plugins, whatever their root directory is."""

RESOURCE = "nvidia.com/gpu"
_VERSION = "v1beta1"
_MESSAGES = message_classes(
    _VERSION,
    {
        "DevicePluginOptions": [
            ("pre_start_required", 1, "bool"),
            ("get_preferred_allocation_available", 2, "bool"),
        ],
        "RegisterRequest": [
            ("version", 1, "string"),
            ("endpoint", 2, "string"),
            ("resource_name", 3, "string"),
            ("options", 4, "DevicePluginOptions"),
        ],
        "ListAndWatchResponse": [("devices", 1, "Device*")],
        "Device": [("ID", 1, "string"), ("health", 2, "string")],
        "AllocateRequest": [("container_requests", 1, "ContainerAllocateRequest*")],
        "ContainerAllocateRequest": [("devices_ids", 1, "string*")],
        "AllocateResponse": [("container_responses", 1, "ContainerAllocateResponse*")],
        "ContainerAllocateResponse": [("envs", 1, "Variable*")],
        "Variable": [("key", 1, "string"), ("value", 2, "string")],
    },
)


class DevicePlugin:
    """A plugin with these GPUs, all healthy.

    Args:
        uuids: UUIDs of the GPUs.

    Attributes:
        given: UUIDs that the kubelet gave to containers, in order.
    """

    def __init__(self, uuids: Sequence[str]) -> None:
        self._uuids = uuids
        self.given: list[str] = []

    def answer(self, method: str, message: bytes) -> Answer | str:
        """Answer the kubelet's calls; the list of devices stays as it is."""
        match method.removeprefix(f"/{_VERSION}.DevicePlugin/"):
            case "GetDevicePluginOptions":
                return Answer(b"")
            case "ListAndWatch":
                devices = [{"ID": uuid, "health": "Healthy"} for uuid in self._uuids]
                return Answer(_MESSAGES["ListAndWatchResponse"](devices=devices).SerializeToString(), stays=True)
            case "Allocate":
                return Answer(self._allocate(_MESSAGES["AllocateRequest"].FromString(message)))
        return f"unknown method {method}"

    def _allocate(self, request: object) -> bytes:
        response = _MESSAGES["AllocateResponse"]()
        for container in request.container_requests:  # type: ignore[attr-defined]
            self.given += container.devices_ids
            value = ",".join(container.devices_ids)
            response.container_responses.add(envs=[{"key": "NVIDIA_VISIBLE_DEVICES", "value": value}])
        data: bytes = response.SerializeToString()
        return data


@contextlib.contextmanager
def device_plugin(uuids: Sequence[str], sockets: Path = SOCKETS) -> Iterator[DevicePlugin]:
    """Serve the plugin and register it with the kubelet whose socket is in the folder."""
    plugin = DevicePlugin(uuids)
    own = sockets / "joulie-modelled-gpus.sock"
    with serving(own, plugin.answer):
        request = _MESSAGES["RegisterRequest"](version=_VERSION, endpoint=own.name, resource_name=RESOURCE)
        call(sockets / "kubelet.sock", f"/{_VERSION}.Registration/Register", request.SerializeToString())
        try:
            yield plugin
        finally:
            own.unlink(missing_ok=True)
