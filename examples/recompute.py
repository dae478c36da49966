"""Compute all figures again from a file of `joulie ledger export`, with no code of Joulie."""

import collections
import hashlib
import json
import pathlib
import sys

records = collections.defaultdict(list)
for line in pathlib.Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
    record = json.loads(line)
    records[record["record"]].append(record)
ledger = records["ledger"][0]
energy, number, digest = ledger["energy_fields"], ledger["pruned_number"], ledger["pruned_hash"]

# The journal: each hash is that of the hash before it and the entry's own content.
for entry in records["entries"]:
    content = [entry[name] for name in (*ledger["entry_fields"], *energy)]
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    number, digest = number + 1, hashlib.sha256((digest + text).encode()).hexdigest()
    if (entry["number"], entry["hash"]) != (number, digest):
        sys.exit(f"entry {number} is not what was booked")

# The figures as reported: what is booked, with all corrections, and what is not in the journal yet.
told = collections.defaultdict(float)
for one in records["entries"] + records["open"]:
    if one["concerns_s"] >= ledger["postings_s"]:
        for name in energy:
            told[one["concerns_s"] // 86400, one["namespace"], one["owner_kind"], one["owner_name"], name] += one[name]

# The same from IT energy and its factors. Unknown factors give energy without intensity or price, never zero.
value = {factor["id"]: factor["current"] for factor in records["factors"]}
made = collections.defaultdict(float)
for one in records["postings"]:
    joules = (one["cpu_j"] + one["mem_j"]) * value[one["pue"]] + one["gpu_j"] * value[one["gpu_pue"]]
    parts = {"cpu_j": one["cpu_j"], "mem_j": one["mem_j"], "gpu_j": one["gpu_j"], "energy_j": joules}
    if one["quality"] != "modelled":
        parts[one["quality"] + "_j"] = joules
    for factor, amount in (("intensity", "emissions_g"), ("marginal", "marginal_g"), ("price", "cost")):
        known = value[one[factor]]
        name = f"energy_without_{factor}_j" if known is None else amount
        parts[name] = joules if known is None else joules / 3.6e6 * known
    for name, part in parts.items():
        made[one["hour"] // 24, one["namespace"], one["owner_kind"], one["owner_name"], name] += part

unit = {name: "energy_j" if name.endswith("_j") else name for name in energy}
scale = {name: max([abs(told[key]) for key in told if key[-1] == unit[name]], default=0.0) or 1.0 for name in energy}
worst = max((abs(told[key] - made[key]) / scale[key[-1]] for key in {*told, *made}), default=0.0)
sys.stdout.write(f"{number} entries, {len(made)} figures computed again, largest deviation {worst:.1e}\n")
sys.exit(worst > 1e-9)
