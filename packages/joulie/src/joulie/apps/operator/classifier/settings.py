"""Settings of the classifier."""

from __future__ import annotations

from dataclasses import dataclass

from joulie.program.settings import Kind, setting


@dataclass(frozen=True, kw_only=True)
class ClassifierSettings:
    """When workloads are classified, and from what."""

    enable_classifier: bool = setting(
        "ENABLE_CLASSIFIER", "true", kind=Kind.BOOLEAN, help="Keep a WorkloadProfile of each workload."
    )
    classify_interval_s: float = setting(
        "CLASSIFY_INTERVAL",
        "30s",
        kind=Kind.DURATION,
        minimum=1.0,
        help="How often the classifier looks whether a workload is due; it asks for metrics only then.",
    )
    reclassify_interval_s: float = setting(
        "RECLASSIFY_INTERVAL",
        "15m",
        kind=Kind.DURATION,
        minimum=1.0,
        help="Time between two classifications of a workload, each workload at its own moment; also the time after "
        "which confidence falls by a step where its metrics have vanished.",
    )
    classify_window_s: float = setting(
        "CLASSIFY_METRICS_WINDOW",
        "10m",
        kind=Kind.DURATION,
        minimum=1.0,
        help="Time that use is averaged over, and that a pod must have run before it counts.",
    )
    kepler_available: bool = setting(
        "KEPLER_AVAILABLE", "true", kind=Kind.BOOLEAN, help="Ask Prometheus for Kepler's energy of pods."
    )
    min_confidence: float = setting(
        "CLASSIFY_MIN_CONFIDENCE",
        "0.5",
        kind=Kind.NUMBER,
        minimum=0.0,
        maximum=1.0,
        help="Confidence that a WorkloadProfile needs to weigh in the demand for performance nodes.",
    )
    classify_learned: bool = setting(
        "CLASSIFY_LEARNED",
        "false",
        kind=Kind.BOOLEAN,
        help="Let learned trees refine intensities and the GPUs' cap sensitivity from the course of use over the "
        "window; three range queries more a cycle. They were trained on windows of ten minutes.",
    )
    cap_response_query: str = setting(
        "CAP_RESPONSE_QUERY",
        "",
        kind=Kind.TEXT,
        help="PromQL of the work that pods do in a second, by namespace and pod, in any unit: measures cap sensitivity "
        "where the caps of a node change. Empty for none.",
    )
    classify_simulated: bool = setting(
        "CLASSIFY_SIMULATED",
        "false",
        kind=Kind.BOOLEAN,
        help="Take the utilisation that pods' sim.joulie.io annotations ask for as if it had been measured.",
    )
    classify_simulated_noise_pct: float = setting(
        "CLASSIFY_SIMULATED_NOISE_PCT",
        "0",
        kind=Kind.NUMBER,
        minimum=0.0,
        maximum=100.0,
        unit="%",
        help="Standard deviation of Gaussian noise on that, in points.",
    )
