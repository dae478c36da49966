"""What the dashboard of the Compute Gardener Scheduler asks Prometheus for.

Source: elevated-systems/compute-gardener-scheduler, dashboards/compute-gardener-dashboard.json, revision 5a8d0ce.
Three queries of its pod timeline are left out, since they match nothing with the Gardener itself: they join counters of
delays, which name no pod, with the pods of kube-state-metrics by all labels.
"""

_PHASE = (
    'sum by(exported_pod) (kube_pod_status_phase{{phase="{phase}",exported_pod=~".*"}} * on(exported_pod, '
    "exported_namespace) group_left(scheduler_name) "
    '(kube_pod_info{{scheduler_name="compute-gardener-scheduler"}})) * {number}'
)
_CARBON = 'compute_gardener_scheduler_carbon_intensity{region=~".*", data_status="%s"}'
_SAVED = (
    'sum by (exported_namespace, exported_pod) (compute_gardener_scheduler_estimated_savings{type="%s", unit="%s", '
    'method="%s"})'
)
_LATENCY = "histogram_quantile(%s, rate(compute_gardener_scheduler_pod_scheduling_duration_seconds_bucket[5m]))"
_OF_NODE = 'sum by (node, exported_pod) (compute_gardener_scheduler_%s{node=~".*", phase="current"} > 0)'
_SUM = "sum by(exported_namespace) (increase(compute_gardener_scheduler_%s_sum[5m]))"

QUERIES = (
    _CARBON % "real",
    _CARBON % "estimated",
    "compute_gardener_scheduler_electricity_rate",
    _SAVED % ("carbon", "grams_co2", "timeseries"),
    _SAVED % ("carbon", "grams_co2", "simple"),
    _SAVED % ("cost", "dollars", "simple"),
    "sum by(exported_pod) (compute_gardener_scheduler_carbon_delay_total)",
    "sum by(exported_pod) (compute_gardener_scheduler_price_delay_total)",
    "compute_gardener_scheduler_metrics_cache_size",
    "sum(compute_gardener_scheduler_metrics_samples_stored)",
    *(_LATENCY % share for share in ("0.75", "0.95", "0.99")),
    *(
        _PHASE.format(phase=phase, number=at)
        for at, phase in enumerate(("Pending", "Running", "Succeeded", "Failed"), 1)
    ),
    'sum(kube_pod_status_scheduled{condition="false"})',
    "compute_gardener_scheduler_job_energy_usage_kwh > 0",
    "compute_gardener_scheduler_job_gpu_energy_usage_kwh > 0",
    "(compute_gardener_scheduler_job_energy_usage_kwh - compute_gardener_scheduler_job_gpu_energy_usage_kwh) > 0",
    "compute_gardener_scheduler_job_carbon_emissions_grams / 1000 > 0",
    "compute_gardener_scheduler_job_counterfactual_carbon_emissions_grams / 1000 > 0",
    "sum by (exported_namespace) (compute_gardener_scheduler_job_energy_usage_kwh > 0)",
    "sum by (exported_namespace) (compute_gardener_scheduler_job_carbon_emissions_grams / 1000 > 0)",
    "compute_gardener_scheduler_energy_budget_usage_percent",
    *(_OF_NODE % name for name in ("node_power_estimate_watts", "node_gpu_power_watts", "node_cpu_usage_cores")),
    'compute_gardener_scheduler_node_efficiency{node=~".*"}',
    _SUM % "job_energy_usage_kwh",
    _SUM % "job_carbon_emissions_grams",
    "compute_gardener_scheduler_scheduling_attempt_total",
    "compute_gardener_scheduler_power_filtered_nodes_total",
    "compute_gardener_scheduler_scheduling_efficiency",
    "compute_gardener_scheduler_energy_budget_exceeded_total",
)
