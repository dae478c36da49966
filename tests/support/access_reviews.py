"""An API server that answers TokenReviews and SubjectAccessReviews for the energy API."""

import json

from joulie.adapters.kubernetes.errors import ConnectionLostError
from joulie.adapters.program_api.energy import AUDIENCE

API_SERVER = "https://kubernetes.default.svc"


class ApiServer:
    """Answers reviews: tokens are names of users, who may read the namespaces that `rights` says."""

    def __init__(self, rights: dict[str, set[str]]) -> None:
        self.rights = rights
        self.audience_of = {"grid": AUDIENCE}
        self.reviews: list[str] = []
        self.away = False

    async def raw(self, _method: str, path: str, *, body: bytes) -> bytes:
        if self.away:
            raise ConnectionLostError("no answer", sent=False)
        spec = json.loads(body)["spec"]
        self.reviews.append(path.rpartition("/")[2])
        if path.endswith("tokenreviews"):
            audience = self.audience_of.get(spec["token"], API_SERVER)
            known = spec["token"] in self.rights and audience in spec.get("audiences", [API_SERVER])
            user = {"username": spec["token"], "groups": ["system:authenticated"]} if known else {}
            status = {"authenticated": known, "user": user, "audiences": [audience] if known else []}
            return json.dumps({"status": status}).encode()
        asked = spec["resourceAttributes"]
        assert (asked["verb"], asked["group"], asked["resource"]) == ("get", "joulie.io", "energy")
        return json.dumps({"status": {"allowed": asked["namespace"] in self.rights[spec["user"]]}}).encode()
