"""Who holds a GPU: whatever IDs a kubelet lists, no GPU is limited for a pod that does not hold the whole of it."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from joulie.adapters.kubernetes.api.v1alpha1 import GpuLimit, PodReference
from joulie.apps.agent.gpu_limits import with_gpu_limits
from joulie.apps.agent.views import TwinView
from joulie.domain.actuation import WantedCap
from joulie.domain.gpu_allocations import Allocation, NodeGpu, claimed_device, holdings
from joulie.domain.usage import PodKey

MOST_GPUS = 4
PODS: Sequence[PodKey] = [("ml", f"pod-{number}") for number in range(3)]
FOREIGN = (
    claimed_device("gpu.nvidia.com", "node", "gpu-0"),
    "amdgpu_xcp_3",
    "MIG-1b2c",
    "",
    "9",
    "GPU-of-another-node",
)


def uuid(number: int) -> str:
    return f"GPU-{number:08x}"


def address(number: int) -> str:
    return f"0000:{number:02x}:00.0"


@st.composite
def nodes(draw: st.DrawFn) -> list[NodeGpu]:
    count = draw(st.integers(1, MOST_GPUS))
    return [
        NodeGpu(uuid(number), draw(st.booleans()), draw(st.sampled_from([None, address(number)])))
        for number in range(count)
    ]


WHOLE = st.integers(0, MOST_GPUS).flatmap(
    lambda number: st.sampled_from([uuid(number), uuid(number).upper(), address(number), str(number)])
)
DEVICES = WHOLE | WHOLE.map(lambda device: f"{device}::1") | st.sampled_from(FOREIGN)
ALLOCATIONS = st.lists(
    st.builds(Allocation, st.sampled_from(PODS), st.lists(DEVICES, max_size=3).map(tuple)), max_size=4
)


def names_of(gpu: NodeGpu, index: int, *, indexed: bool) -> set[str]:
    """IDs of the whole GPU, in lower case."""
    return {gpu.id.lower(), *([gpu.address] if gpu.address else []), *([str(index)] if indexed else [])}


@given(nodes(), ALLOCATIONS, st.booleans())
def test_a_holder_is_who_has_the_whole_gpu_alone(
    gpus: list[NodeGpu], allocations: list[Allocation], indexed: bool
) -> None:
    found = holdings(allocations, gpus, indexed=indexed)
    listed = [(one.pod, device.lower()) for one in allocations for device in one.devices]
    named: set[str] = set()
    for index, gpu in enumerate(gpus):
        names = names_of(gpu, index, indexed=indexed)
        own = [(pod, device) for pod, device in listed if device.partition("::")[0] in names]
        named |= {device for _, device in own}
        assert set(found[gpu.id].pods) == {pod for pod, _ in own}
        if gpu.partitioned or any("::" in device for _, device in own):
            assert found[gpu.id].shared
    if any(device not in named for _, device in listed):
        assert all(holding.shared for holding in found.values() if not holding.pods)
    assert holdings(allocations[::-1], gpus, indexed=indexed) == found


@given(nodes(), ALLOCATIONS, st.lists(st.tuples(st.integers(0, MOST_GPUS), st.sampled_from(PODS)), max_size=4))
def test_a_limit_is_set_for_nobody_but_the_holder(
    gpus: list[NodeGpu], allocations: list[Allocation], wanted: list[tuple[int, PodKey]]
) -> None:
    limits = tuple(GpuLimit(uuid(number), PodReference(pod[1], pod[0]), 300.0) for number, pod in wanted)
    held = holdings(allocations, gpus, indexed=True)
    cap = with_gpu_limits(WantedCap(None, 100.0), TwinView("node", gpu_limits=limits), held)
    asked = {(limit.id, (limit.pod.namespace, limit.pod.name)) for limit in limits}
    for gpu, _ in cap.by_device:
        holding = held.get(gpu)
        if holding is not None:
            assert not holding.shared
            assert any((gpu, pod) in asked for pod in holding.pods)
