"""A pipeline is there while it is held, as Serve's controller decides, which cannot import this package."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

from deployments.target.elastic import elastic

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing Serve warns
    from ray.serve.config import AutoscalingConfig

REPOSITORY = Path(__file__).parents[3]
CONTROLLER = """
import sys
from types import SimpleNamespace
sys.path = [place for place in sys.path if place not in ("", sys.argv[1])]
from ray import cloudpickle
policy = cloudpickle.loads(sys.stdin.buffer.read())
assert not any(name.split(".")[0] in ("deployments", "app") for name in sys.modules)
for requests, replicas in ((0, 0), (0.04, 1), (1, 1), (7.5, 1)):
    assert policy(SimpleNamespace(total_num_requests=requests)) == (replicas, {})
"""


def test_the_policy_wants_a_replica_while_calls_run_or_wait_and_needs_no_module_of_ours() -> None:
    config = AutoscalingConfig(**elastic()["autoscaling_config"])
    assert (config.min_replicas, config.max_replicas, config.initial_replicas) == (0, 1, None)
    pickled = config.policy.get_serialized_policy_def()
    assert pickled
    done = subprocess.run([sys.executable, "-c", CONTROLLER, str(REPOSITORY)], input=pickled, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
