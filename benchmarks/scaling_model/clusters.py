"""The model where nothing can be run: a 70B in FP16 on up to 16 H100, tables of docs/scaling.md."""

from __future__ import annotations

from dataclasses import replace

from app.planning.cluster import Cluster, spread
from engine.simulated.profile import PROFILES, PipelineProfile

GPU_BYTES, WEIGHT_BYTES, TOKEN_BYTES = 72e9, 140e9, 327_680  # usable of an H100; a 70B in FP16; its K and V per token
CONTEXT = 1_500  # tokens of a sequence, prompt and output
LINKS = {  # bytes/s one way, seconds
    "10 Gbit/s TCP": (1.25e9, 5e-5),
    "25 Gbit/s TCP": (3.125e9, 5e-5),
    "100 Gbit/s TCP": (1.25e10, 3e-5),
    "NVLink": (4.5e11, 5e-6),
}
STREAMS = (1, 8, 32, 128, 512)
SOFTWARE = (3e-4, 5e-4)  # hop and turn, seconds: CPU time of stage and router per step on a small machine


def profile(stages: int) -> PipelineProfile:
    """The packaged 70B profile for any number of stages."""
    return spread(PROFILES["70b-h100x4"], stages)


def capacity(gpus: int, replicas: int = 1) -> int:
    """Sequences whose keys and values fit, over all replicas."""
    each = gpus // replicas
    return max(0, int((each * GPU_BYTES - WEIGHT_BYTES) / (CONTEXT * TOKEN_BYTES))) * replicas


def layouts() -> list[str]:
    """Tokens per second by GPUs and replicas, without drafts and with the best tree; Markdown rows."""
    rows = [
        "| GPUs | replicas x stages | sequences that fit | one stream, plain -> drafted (nodes) | "
        + " | ".join(f"{n} streams" for n in STREAMS[1:]) + " |",
        "|---" * (4 + len(STREAMS) - 1) + "|",
    ]  # fmt: skip
    for gpus, replicas in ((2, 1), (4, 1), (4, 2), (8, 1), (8, 2), (8, 4), (16, 1), (16, 2), (16, 4)):
        stages, fit = gpus // replicas, capacity(gpus, replicas)
        cluster = Cluster(profile(stages), stages, *SOFTWARE)
        cells = [_cell(cluster, n // replicas, replicas) if n <= fit else "no room" for n in STREAMS[1:]]
        rows.append(f"| {gpus} | {replicas} x {stages} | {fit} | {_cell(cluster, 1, 1)} | " + " | ".join(cells) + " |")
    return rows


def _cell(cluster: Cluster, streams: int, replicas: int) -> str:
    nodes = cluster.best_nodes(streams)
    plain, drafted = cluster.decoding(streams), cluster.speculating(streams, nodes)
    return f"{plain.tokens_per_s * replicas:.0f} -> {drafted.tokens_per_s * replicas:.0f} ({nodes})"


def wires() -> list[str]:
    """Steps through four stages on different wires; Markdown rows."""
    rows = [
        "| link | hop of 1 row | of 65 rows | of 1040 rows | one stream, 64 nodes: a step | 64 streams: steps/s |",
        "|---|---|---|---|---|---|",
    ]
    for name, (bytes_per_s, latency_s) in LINKS.items():
        wired = replace(profile(4), link_bytes_per_s=bytes_per_s, link_latency_s=latency_s)
        cluster = Cluster(wired, 4, *SOFTWARE)
        hops = [f"{(wired.wire_seconds(rows_) + latency_s) * 1e3:.2f} ms" for rows_ in (1, 65, 1040)]
        one, many = cluster.decoding(1, 64), cluster.decoding(64, 64)
        rows.append(f"| {name} | {' | '.join(hops)} | {one.step_s * 1e3:.1f} ms | {many.steps_per_s:.0f} |")
    return rows


def break_even() -> list[str]:
    """Gain of trees by streams on four stages; Markdown rows."""
    cluster, widths = Cluster(profile(4), 4, *SOFTWARE), (4, 16, 64, 128)
    head = " | ".join(f"{nodes} nodes" for nodes in widths)
    rows = [f"| streams | {head} | best |", "|---" * (len(widths) + 2) + "|"]
    for n in (1, 4, 16, 32, 64, 128, 256):
        plain = cluster.decoding(n).tokens_per_s
        gains = " | ".join(f"{cluster.speculating(n, nodes).tokens_per_s / plain:.2f}" for nodes in widths)
        rows.append(f"| {n} | {gains} | {cluster.best_nodes(n)} |")
    return rows
