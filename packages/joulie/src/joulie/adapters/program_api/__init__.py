"""The JSON that Joulie's programs serve over HTTP and the kubectl plugin reads."""
