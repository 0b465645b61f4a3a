"""A pipeline that is there only while a router holds it: a deployment that Serve scales between no replica and one.

Routers that want the pipeline keep calling ``TargetDeployment.hold``. Serve's own policy would do but for one thing: it
lets a replica that has not started yet be wanted for ever, so nodes would come for a pipeline that is wanted no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

RELEASED_S = 60.0  # that a pipeline stays which is held no more: a router that was lost has a successor by then
LOOK_BACK_S = 15.0  # seconds of calls that Serve looks at; more than the 10 between two reports of a handle


def while_held(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Serve's autoscaling policy: a replica while a call runs or waits. Serve's controller runs it, without this
    package: it must refer to nothing of its module."""
    return int(context.total_num_requests > 0), {}


def elastic() -> dict[str, Any]:
    """Serve's options of such a deployment."""
    scaling = {"min_replicas": 0, "max_replicas": 1, "look_back_period_s": LOOK_BACK_S, "upscale_delay_s": 0}
    policy = {"policy_function": f"{__name__}:{while_held.__name__}"}
    return {"autoscaling_config": scaling | {"downscale_to_zero_delay_s": RELEASED_S, "policy": policy}}
