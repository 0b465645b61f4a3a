"""Elastic pipelines: Serve runs one replica while a router holds it, else none.

Routers that need the pipeline repeat ``TargetDeployment.hold``. Serve's own policy never cancels a replica that has not
started yet, so new nodes would start for a pipeline that no router needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

RELEASED_S = 60.0  # seconds from the last hold until the pipeline ends; a lost router has a successor by then
LOOK_BACK_S = 15.0  # seconds of calls that Serve counts; more than the 10 between two reports of a handle


def while_held(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Serve's autoscaling policy: one replica while a call runs or waits.

    Serve's controller runs it without this package: it must not refer to names of its module.
    """
    return int(context.total_num_requests > 0), {}


def elastic() -> dict[str, Any]:
    """Serve's options of an elastic deployment."""
    scaling = {"min_replicas": 0, "max_replicas": 1, "look_back_period_s": LOOK_BACK_S, "upscale_delay_s": 0}
    policy = {"policy_function": f"{__name__}:{while_held.__name__}"}
    return {"autoscaling_config": scaling | {"downscale_to_zero_delay_s": RELEASED_S, "policy": policy}}
