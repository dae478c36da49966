"""Reports of finished runs: metrics, chart data, a self-contained HTML file, and PNG plots."""
