"""Scaffolding of the laboratory's commands: output files, progress, parallel runs, cooling plants and signals."""
