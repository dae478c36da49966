"""Pages and JSON API of `kubectl joulie web`: the fleet, its nodes, its health, a team's pods and its energy."""
