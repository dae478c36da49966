"""Take Joulie off a cluster: no caps, labels or gates stay behind."""
