"""`joulie grid`: when deferrable work runs, by carbon intensity and price."""
