"""What every daemon of Joulie is made of: settings, logs, probes and metrics over HTTP, signals, traces."""
