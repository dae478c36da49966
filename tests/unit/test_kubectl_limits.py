"""`kubectl joulie limits`: whose limit each GPU has."""

from typing import Any

import msgspec

from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin
from joulie.adapters.kubernetes.pods import Owner
from joulie.apps.kubectl.limits import limit_rows

DYNAMO = "dynamo.nvidia.com/gpu-power-limit"
POD = {"namespace": "ml", "name": "train-0"}


def gpu(name: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "limitWatts": 450.0, "originalWatts": 700.0, "pods": [POD], **fields}


def test_every_limit_has_an_owner() -> None:
    limits = [{"id": name, "watts": 450.0, "pod": POD} for name in "abc"]
    limits[1]["owner"] = DYNAMO
    gpus = [gpu("a", owner="joulie"), gpu("b", owner="joulie"), gpu("c", owner="other", limitWatts=300.0), gpu("d")]
    document = {
        "metadata": {"name": "n"},
        "spec": {"nodeName": "n", "profile": "performance", "gpuLimits": limits},
        "status": {"controlStatus": {"gpus": gpus}},
    }
    rows = limit_rows([msgspec.convert(document, NodeTwin)], {("ml", "train-0"): Owner("Job", "train")}, [])
    whys = [row.why for row in rows]
    assert whys == ["trial: measuring", DYNAMO, "limit of another program", "not limited"]
    assert [row.limit_w for row in rows] == [450.0, 450.0, 300.0, 450.0]
