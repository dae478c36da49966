"""Replays of recorded clusters: the past as it was, a model fitted to it, and forecasts of policies."""
