"""Where the cluster's API server has the API of `joulie web`, if it is registered there."""

API_GROUP = "energy.joulie.io"
API_VERSION = "v1alpha1"
GROUP_ROOT = f"/apis/{API_GROUP}"
API_ROOT = f"{GROUP_ROOT}/{API_VERSION}"
OWN_ROOT = "/api/v1"
"""Where `joulie web` itself has what is below `API_ROOT`."""
