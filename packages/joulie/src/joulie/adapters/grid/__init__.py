"""Sources of carbon intensity and electricity prices."""
