"""Shared parts of the laboratory's commands: output files, progress, parallel runs, cooling plants, grid signals."""
