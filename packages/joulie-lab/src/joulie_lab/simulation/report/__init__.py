"""Reports of finished runs: the metrics shown, the charts' data, one HTML file, PNG plots."""
