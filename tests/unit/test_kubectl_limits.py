"""`kubectl joulie limits`: whose limit each GPU has."""

from typing import Any

import msgspec

from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin, WorkloadProfile
from joulie.adapters.kubernetes.pods import Owner
from joulie.apps.kubectl.limits import COLUMNS, limit_rows

DYNAMO = "dynamo.nvidia.com/gpu-power-limit"
POD = {"namespace": "ml", "name": "train-0"}
OWNERS = {("ml", "train-0"): Owner("Job", "train")}


def gpu(name: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "limitWatts": 450.0, "originalWatts": 700.0, "pods": [POD], **fields}


def twin(limits: list[dict[str, Any]], gpus: list[dict[str, Any]]) -> NodeTwin:
    document = {
        "metadata": {"name": "n"},
        "spec": {"nodeName": "n", "profile": "performance", "gpuLimits": limits},
        "status": {"controlStatus": {"gpus": gpus}},
    }
    return msgspec.convert(document, NodeTwin)


def test_every_limit_has_an_owner() -> None:
    limits = [{"id": name, "watts": 450.0, "pod": POD} for name in "abc"]
    limits[1]["owner"] = DYNAMO
    gpus = [gpu("a", owner="joulie"), gpu("b", owner="joulie"), gpu("c", owner="other", limitWatts=300.0), gpu("d")]
    rows = limit_rows([twin(limits, gpus)], OWNERS, [])
    whys = [row.why for row in rows]
    assert whys == ["trial: measuring", DYNAMO, "limit of another program", "not limited"]
    assert [row.limit_w for row in rows] == [450.0, 450.0, 300.0, 450.0]


def test_a_clock_is_shown_with_its_knob_unit_and_problem() -> None:
    limits = [{"id": name, "maxSmClockMhz": 1386, "pod": POD} for name in "ab"]
    gpus = [
        gpu("a", smClock={"largestMhz": 1980, "maxMhz": 1380, "result": "applied"}),
        gpu("b", smClock={"result": "error", "message": "something overrides the lock"}),
        gpu("c", smClock={"largestMhz": 1980}),
    ]
    held = {"watts": 700, "baselineWatts": 700, "maxSmClockMhz": 1386, "reason": "measured", "savedPct": 12.5}
    document = {
        "metadata": {"name": "job-train", "namespace": "ml"},
        "spec": {"workloadRef": {"kind": "Job", "name": "train", "namespace": "ml"}},
        "status": {"gpuLimit": held},
    }
    rows = limit_rows([twin(limits, gpus)], OWNERS, [msgspec.convert(document, WorkloadProfile)])
    assert [row.knob for row in rows] == ["clock", "clock", None]
    assert [COLUMNS["limit"].text(row) for row in rows] == ["1386 MHz", "1386 MHz", "450 W"]
    assert [row.why for row in rows] == ["measured", "error: something overrides the lock", "not limited"]
    assert rows[0].saved_pct == 12.5
