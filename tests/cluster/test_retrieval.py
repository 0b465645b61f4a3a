"""Live retrieval across machines: a Redis on one, the service on another, and the router, which drafts, on a third."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.model.identity import tokenizer_hash
from engine.model.loader import load_spec
from retrieval_store.service.compaction import TargetVocabulary
from tests.cluster.machines.net import CLIENT, Net
from tests.cluster.machines.redis_machine import RedisMachine
from tests.cluster.machines.spectra_machines import SpectraMachines, serve_config
from tests.support.retrieval_service import build
from tests.support.serve_application import is_running
from tests.support.tiny_models import saved_checkpoint
from tests.support.waiting import wait_until

pytestmark = pytest.mark.matrix

CACHE = "/tmp/home/.cache/spectra-serve/served-snapshots"
AUTHORITY = "/tmp/ca.pem"
MOST, FEW = 80, 40  # accepted of 120: the text itself was looked up, or texts that agree with it by chance


@pytest.fixture(scope="module")
def site(net: Net, logs: Path, redis: RedisMachine) -> Iterator[SpectraMachines]:
    with SpectraMachines(net, logs, environment=credentials(redis, "reader")) as site:
        site.join("retrieval", 1, retrieval=1)
        site.start(("stage",), others=1)
        for machine in net.machines.values():
            machine.path(AUTHORITY).write_bytes(redis.authority)
        config = serve_config(stages=1, method="rest", retrieval=store(redis), retrieval_poll=0.2)
        apart = {"num_cpus": 0.1, "resources": {"retrieval": 0.01}}
        config["applications"][0]["deployments"] = [{"name": "Retrieval", "ray_actor_options": apart}]
        site.application.put(config)
        site.application.until(is_running)
        yield site


def store(redis: RedisMachine) -> str:
    return f"{redis.url}?ca={AUTHORITY}"


def credentials(redis: RedisMachine, user: str) -> dict[str, str]:
    return {"SPECTRA_REDIS_USERNAME": user, "SPECTRA_REDIS_PASSWORD": redis.password}


def complete(site: SpectraMachines, prompt: str, **fields: Any) -> tuple[list[int], int]:
    """Token ids, and how many of them had been drafted from what was looked up."""
    usual = {"model": "tiny", "max_tokens": 120, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    answer = site.http.post("/v1/completions", json=usual | {"prompt": prompt} | fields).raise_for_status().json()
    figures = answer["metrics"]["speculative_decoding"]
    return answer["choices"][0]["token_ids"], figures["by_source"].get("rest", {}).get("accepted", 0)


def publish(site: SpectraMachines, redis: RedisMachine, texts: list[list[int]], folder: Path) -> None:
    """Make a snapshot of texts current, from a machine that is none of the cluster's."""
    target = TargetVocabulary(tokenizer_hash(saved_checkpoint()), load_spec(saved_checkpoint()).vocab_size)
    snapshot = build(texts, folder, target)
    client = site.net.machine(CLIENT)
    shutil.copytree(snapshot, client.path(f"/tmp/{snapshot.name}"))
    command = ("spectra", "corpus", "publish", "--store", store(redis), f"/tmp/{snapshot.name}")
    client.run(*command, environment=credentials(redis, "publisher"))


def version(site: SpectraMachines) -> str:
    return str(site.http.get("/health").json().get("retrieval_version", ""))


def test_a_snapshot_comes_from_one_machine_to_others_and_outlives_what_it_came_from(
    site: SpectraMachines, redis: RedisMachine, tmp_path: Path
) -> None:
    service, reader = site.machine_of("Retrieval"), site.machine_of("Router")
    assert (service.name, reader.name) == ("retrieval", "edge")
    prompts = ("Snow falls on", "The quick brown")
    texts = [complete(site, prompt, speculative={"enabled": False})[0] for prompt in prompts]
    assert complete(site, prompts[0]) == (texts[0], 0)
    publish(site, redis, texts[:1], tmp_path)
    wait_until(lambda: version(site))
    first = version(site)
    assert [machine.run("ls", "-R", CACHE).count(first) > 0 for machine in (service, reader)] == [True, True]
    clients = redis.ask("CLIENT", "LIST", user="exporter")
    assert set(re.findall(r" addr=([\d.]+):\d+ .* user=reader ", clients)) == {service.address}
    ids, accepted = complete(site, prompts[0])
    assert (ids, accepted > MOST) == (texts[0], True)
    ids, accepted = complete(site, prompts[1])
    assert (ids, accepted < FEW) == (texts[1], True)
    publish(site, redis, texts, tmp_path)
    wait_until(lambda: version(site) != first)
    for machine in (redis.machine, service):  # what has come is on the reader's machine
        machine.kill()
        for prompt, text in zip(prompts, texts, strict=True):
            ids, accepted = complete(site, prompt)
            assert (ids, accepted > MOST) == (text, True)
