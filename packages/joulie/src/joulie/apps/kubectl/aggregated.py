"""Client of the aggregated API of `joulie web`: the API server tells it who asks, by whatever credentials."""

from __future__ import annotations

from collections.abc import Mapping

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ApiError, ForbiddenError, NotFoundError
from joulie.adapters.program_api.aggregated import API_ROOT, OWN_ROOT

_UNAVAILABLE = (503, 504)


async def query_aggregated(client: KubeClient, path: str, query: Mapping[str, str]) -> bytes | None:
    """The answer of the aggregated API; None if the cluster has none, or it does not answer now.

    Args:
        client: Kubernetes client of the user.
        path: path of `joulie web`, such as ``/api/v1/energy``.
        query: URL parameters.

    Raises:
        KubernetesError: the user may not read this, or the query is invalid.
    """
    try:
        # Asked once: there is another way, and an API server may need a minute to say that this one is closed.
        return await client.raw("GET", API_ROOT + path.removeprefix(OWN_ROOT), params=query, repeatable=False)
    except NotFoundError:
        return None
    except ForbiddenError as error:
        # An API server refuses a user whom no role allows this, even where the API is not installed, and gives a reason
        # such as Forbidden. A refusal by `joulie web` itself has none.
        if error.reason:
            return None
        raise
    except ApiError as error:
        if error.status in _UNAVAILABLE:
            return None
        raise
