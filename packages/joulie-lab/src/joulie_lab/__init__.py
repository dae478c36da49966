"""Joulie's laboratory: what answers questions about energy and scheduling without a cluster."""
