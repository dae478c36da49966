"""Compute a month's report again from the ledger's export and the report's own factors, with no code of Joulie."""

import json
import pathlib
import sys
import time
from collections import defaultdict

export, told = (pathlib.Path(name).read_text(encoding="utf-8") for name in sys.argv[1:3])
told = json.loads(told)
made, kwh = defaultdict(float), defaultdict(float)
for one in map(json.loads, export.splitlines()):
    about_s = one.get("concerns_s", 0.0)
    months = {time.strftime("%Y-%m", time.gmtime(at_s)) for at_s in (about_s, one.get("from_s", about_s))}
    if months != {told["month"]} or "namespace" not in one:
        continue  # of another month, a correction that was booked in another one, or no emissions of anybody
    who = (one["namespace"], one["owner_kind"], one["owner_name"])
    note = {**one, **json.loads(one.get("note", "{}"))}
    if one.get("kind") in {"booked", "correction"} or one["record"] == "open":
        kwh[one["zone"]] += one["energy_j"] / 3.6e6
        made[who, one["zone"]] += one["energy_j"] / 3.6e6
        made[who, "energyKWh"] += one["energy_j"] / 3.6e6
        made[who, "locationBasedG"] += one["emissions_g"]
        made[who, "marginalG"] += one["marginal_g"]
    for part in ("cpu", "memory", "gpu") if note.get("asset") else ():
        for name, end in (("embodiedG", "g"), ("embodiedLowG", "low_g"), ("embodiedHighG", "high_g")):
            made[who, name] += note["asset"][part][end] * note[part + "_s"] / note["asset"]["lifespan_s"]
    made[who, "units"] += note.get("amount", 0.0)

for zone in told["marketBased"]:  # covered energy by its instrument's factor, the rest by the residual mix
    mix, covered = zone["residualMix"], zone["instruments"]
    grams = sum(one["coveredKWh"] * one["gPerKWh"] for one in covered)
    rest = kwh[zone["zone"]] - sum(one["coveredKWh"] for one in covered)
    for who in [who for who, name in made if name == zone["zone"]]:
        share = made[who, zone["zone"]] / kwh[zone["zone"]]
        made[who, "marketBasedG"] += share * (grams + (rest * mix["g_per_kwh"] if mix else 0.0))

names = ["energyKWh", "locationBasedG", "marketBasedG", "marginalG", "embodiedG", "embodiedLowG", "embodiedHighG"]
pairs = [(told["total"][name], sum(made[key] for key in list(made) if key[1] == name)) for name in names]
for line in told["workloads"] + told["unallocated"]:
    who = (line["namespace"], line["kind"], line["name"])
    pairs += [(line[name], made[who, name]) for name in names]
    if "sciGPerUnit" in line:
        sci = (made[who, "locationBasedG"] + made[who, "embodiedG"]) / made[who, "units"]
        pairs.append((line["sciGPerUnit"], sci))
worst = max(abs(one - other) / (abs(other) or 1.0) for one, other in pairs)
sys.stdout.write(f"{len(pairs)} figures computed again, largest deviation {worst:.1e}\n")
sys.exit(worst > 1e-9)
