"""Settings of the classifier."""

from __future__ import annotations

from dataclasses import dataclass

from joulie.settings import boolean, duration, number, percentage, text


@dataclass(frozen=True, kw_only=True)
class ClassifierSettings:
    """When workloads are classified, and from what."""

    enable_classifier: bool = boolean("ENABLE_CLASSIFIER", True, "Keep a WorkloadProfile of each workload.")
    classify_interval_s: float = duration(
        "CLASSIFY_INTERVAL",
        "30s",
        "How often the classifier looks whether a workload is due; it asks for metrics only then.",
        minimum=1.0,
    )
    reclassify_interval_s: float = duration(
        "RECLASSIFY_INTERVAL",
        "15m",
        "Time between two classifications of a workload, each workload at its own moment; also the time after "
        "which confidence falls by a step where its metrics have vanished.",
        minimum=1.0,
    )
    classify_window_s: float = duration(
        "CLASSIFY_METRICS_WINDOW",
        "10m",
        "Time that use is averaged over, and that a pod must have run before it counts.",
        minimum=1.0,
    )
    kepler_available: bool = boolean("KEPLER_AVAILABLE", True, "Ask Prometheus for Kepler's energy of pods.")
    min_confidence: float = number(
        "CLASSIFY_MIN_CONFIDENCE",
        "0.5",
        "Confidence that a WorkloadProfile needs to weigh in the demand for performance nodes.",
        minimum=0.0,
        maximum=1.0,
    )
    classify_learned: bool = boolean(
        "CLASSIFY_LEARNED",
        False,
        "Let learned trees refine intensities and the GPUs' cap sensitivity from the course of use over the "
        "window; three range queries more a cycle. They were trained on windows of ten minutes.",
    )
    cap_response_query: str = text(
        "CAP_RESPONSE_QUERY",
        "",
        "PromQL of the work that pods do in a second, by namespace and pod, in any unit: measures cap sensitivity "
        "where the caps of a node change. Empty for none.",
    )
    classify_simulated: bool = boolean(
        "CLASSIFY_SIMULATED",
        False,
        "Take the utilisation that pods' sim.joulie.io annotations ask for as if it had been measured.",
    )
    classify_simulated_noise_pct: float = percentage(
        "CLASSIFY_SIMULATED_NOISE_PCT", "0", "Standard deviation of Gaussian noise on that, in points."
    )
