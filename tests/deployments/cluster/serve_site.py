"""An application that ``serve deploy`` made from a Serve config file on a running cluster."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.ray_head import RayHead
from tests.support.serve_application import ServeApplication
from tests.support.tiny_models import saved_checkpoint
from tests.support.waiting import LIMIT_S

FILE = Path(__file__).parents[3] / "docs" / "serve.yaml"


class ServeSite(ServeApplication):
    """The application on a cluster; ``config`` is the documented file with a tiny model."""

    def __init__(self, head: RayHead) -> None:
        super().__init__(httpx.Client(base_url=head.dashboard, headers=head.headers, timeout=LIMIT_S))
        self.head = head
        self.http = httpx.Client(base_url=head.url, timeout=LIMIT_S)
        self.config = yaml.safe_load(FILE.read_text())
        self.config = self.changed({}, model=str(saved_checkpoint()), name="tiny")

    def close(self) -> None:
        """Give connections back: a socket that is collected later fails whatever test runs then."""
        self.http.close()
        self._dashboard.close()

    def changed(self, deployments: dict[str, dict[str, Any]], **args: Any) -> dict[str, Any]:
        """Return the current config with other options of deployments, and other args."""
        config: dict[str, Any] = deepcopy(self.config)
        application = config["applications"][0]
        application["args"] |= args
        options = {one["name"]: one for one in application["deployments"]}
        for name, given in deployments.items():
            options[name] = options.get(name, {"name": name}) | given
        application["deployments"] = [*options.values()]
        return config

    @property
    def model_hash(self) -> str:
        """Of the model that is served now; empty while no ingress answers."""
        answer = self.http.get("/v1/models")
        return str(answer.json()["data"][0]["model_hash"]) if answer.is_success else ""
