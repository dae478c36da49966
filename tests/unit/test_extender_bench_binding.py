from joulie.apps.extender import bench_binding as binding


def test_ratios_are_taken_round_by_round() -> None:
    """A machine that is twice as fast in one round must not look like a better extender."""
    assert binding._ratio([90.0, 180.0, 45.0], [100.0, 200.0, 50.0]) == 0.9


def test_steered_pods_carry_what_the_class_rule_asks() -> None:
    performance, standard = binding._pod(0, steered=True), binding._pod(1, steered=True)
    required = performance["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert {item["key"] for item in required["nodeSelectorTerms"][0]["matchExpressions"]} == {
        "joulie.io/power-profile",
        "joulie.io/draining",
    }
    assert "preferredDuringSchedulingIgnoredDuringExecution" in standard["spec"]["affinity"]["nodeAffinity"]
    assert "affinity" not in binding._pod(0, steered=False)["spec"]


def test_figures_as_a_table_and_a_picture() -> None:
    found = {"none": 200.0, "constants": 100.0, "joulie": 95.0, "admission": 198.0}
    figures = {"bound_per_s": {"1000": {**found, "joulie_to_constants": 0.95, "admission_to_none": 0.99}}}
    assert list(binding.rows(figures)) == [("1,000", "200", "100", "95", "198", "0.950", "0.990")]
    assert binding.plot(figures).startswith(b"\x89PNG")
