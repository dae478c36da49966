"""The laboratory's commands, as the entry point ``joulie.commands`` names them; importing this imports none of them."""

from __future__ import annotations

from joulie.program.commands import Command

COMMANDS = (
    Command("demo", "joulie_lab.apps.demo.main", "Watch the whole loop on simulated hardware, in time-lapse."),
    Command("simulate", "joulie_lab.apps.simulate", "Play a scenario under one or more schedulers."),
    Command("scenario", "joulie_lab.apps.scenario", "List, show and validate scenarios; print their JSON Schema."),
    Command("workload", "joulie_lab.apps.workload.main", "Make, import, check, describe, cut and stretch job traces."),
    Command("sweep", "joulie_lab.apps.sweep", "Run variants x seeds on all cores, resumable."),
    Command("experiment", "joulie_lab.apps.experiment.main", "Play a trace under several policies; compare savings."),
    Command("replay", "joulie_lab.apps.replay.main", "Judge the model by a recorded cluster; forecast policies on it."),
    Command("trial", "joulie_lab.apps.trial.main", "Plan trials, and report what they measured."),
    Command("grid backtest", "joulie_lab.apps.backtest.main", "Measure what deferral would have saved in a zone."),
    Command("bench", "joulie_lab.apps.bench.main", "Run the benchmarks that Joulie is judged by."),
    Command("fmu", "joulie_lab.apps.fmu", "Build, describe and validate cooling plants as FMUs."),
    Command("machine", "joulie_lab.apps.machine", "List modelled machines; mount them for an agent to run on."),
    Command("simulator", "joulie_lab.apps.simulator.main", "Simulate the hardware and work of a cluster's nodes."),
)
