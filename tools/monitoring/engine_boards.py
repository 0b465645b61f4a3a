"""What engineers look at: what speculation gains, what pipelines do, what is looked up."""

from __future__ import annotations

from tools.monitoring.expressions import MODEL, WINDOW, gauge, mean, quantiles, rate, ratio
from tools.monitoring.grafana import Board, Panel, Query

SOURCES = "spectra:spec_decode_source_tokens_total"
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
FORWARDS = "vllm:inter_token_latency_seconds_count"  # a sequence's steps after its first token
ROUTERS = 'count by (job, instance) (last_over_time(spectra:process_start_time_seconds{process="router"}[1h]))'


def _of_kind(kind: str) -> str:
    return rate(SOURCES, "source", f'{MODEL}, kind="{kind}"')


GAIN = (
    Panel(
        "Tokens per forward of a sequence",
        "short",
        (
            Query(
                f"({rate('vllm:generation_tokens_total')} - {rate('vllm:time_to_first_token_seconds_count')})"
                f" / {rate(FORWARDS)}",
                "all steps",
            ),
            Query(f"1 + {ratio(rate(ACCEPTED), rate(DRAFTS))}", "steps with a draft"),
        ),
        "1 is plain decoding. Without the first token, which a prompt brings.",
    ),
    Panel("Accepted of drafted tokens", "percentunit", (Query(ratio(rate(ACCEPTED), rate(DRAFTED)), "accepted"),)),
    Panel(
        "Of a draft",
        "short",
        (Query(ratio(rate(DRAFTED), rate(DRAFTS)), "drafted"), Query(ratio(rate(ACCEPTED), rate(DRAFTS)), "accepted")),
        "Mean number of tokens.",
    ),
)

ORIGIN = (
    Panel(
        "Accepted by depth",
        "percentunit",
        (
            Query(
                f"{rate('vllm:spec_decode_num_accepted_tokens_per_pos_total', 'position')}"
                f" / on () group_left () {rate(DRAFTS)}",
                "{{position}}",
            ),
        ),
        "Share of drafts whose token at that depth was accepted; 0 is the first.",
    ),
    Panel(
        "Accepted by source",
        "percentunit",
        (Query(ratio(_of_kind("accepted"), _of_kind("drafted")), "{{source}}"),),
        "Share of what the source has drafted.",
    ),
    Panel("Accepted tokens by source", "short", (Query(_of_kind("accepted"), "{{source}}"),), "Per second.", True),
    Panel(
        "Accepted, proposed by one source alone",
        "short",
        (Query(_of_kind("sole_accepted"), "{{source}}"),),
        "Per second: what would be lost without it.",
        True,
    ),
    Panel(
        "Decisions of auto",
        "percentunit",
        (
            Query(
                f"{rate('spectra:auto_steps_total', 'tier, reason')} / on () group_left ()"
                f" {rate('spectra:auto_steps_total')}",
                "{{tier}} {{reason}}",
            ),
        ),
        "Share of the steps about which it decided.",
        True,
    ),
)

SPECULATION = Board("speculation", "Speculation", {"What it gains": GAIN, "Where it comes from": ORIGIN})

STEPS = (
    Panel(
        "Pipelines",
        "short",
        (
            Query(gauge("spectra:pipelines_up"), "up {{model_name}}"),
            Query(gauge("spectra:pipelines_wanted"), "wanted {{model_name}}"),
        ),
    ),
    Panel("Steps in flight", "short", (Query(gauge("spectra:steps_in_flight"), "{{model_name}}"),)),
    Panel(
        "Busy stages",
        "percentunit",
        (Query(rate("spectra:stage_busy_seconds_total", "lane, stage"), "{{lane}} {{stage}}"),),
        "Share of the time that a stage spends on steps.",
    ),
    Panel("Time of a step", "s", quantiles("vllm:iteration_seconds")),
    Panel("Steps per second", "short", (Query(rate("vllm:iteration_seconds_count", "engine"), "lane {{engine}}"),)),
    Panel(
        "Tokens of a step",
        "short",
        (Query(mean("vllm:iteration_tokens_total", "engine"), "lane {{engine}}"),),
        "Mean; of prompts read, and generated.",
    ),
)

LOSSES = (
    Panel(
        "Replacements within an hour",
        "short",
        (
            Query(f"sum(increase(spectra:pipelines_lost_total{{{MODEL}}}[1h]))", "pipelines"),
            Query(f"sum({ROUTERS} - 1)", "routers"),
        ),
    ),
    Panel("Recovery of a pipeline", "s", quantiles("spectra:recovery_seconds")),
    Panel(
        "Sequences that a loss touched",
        "short",
        (
            Query(rate("spectra:sequences_prefilled_again_total"), "prefilled again"),
            Query(rate("spectra:sequences_moved_total"), "moved to another lane"),
            Query(rate("vllm:num_preemptions_total"), "preempted"),
        ),
        "Per second. Preempted: for want of KV blocks.",
    ),
)

MEMORY = (
    Panel(
        "KV cache in use", "percentunit", (Query(f"vllm:kv_cache_usage_perc{{{MODEL}}}", "{{model_name}} {{engine}}"),)
    ),
    Panel(
        "Longest free run",
        "percentunit",
        (Query(f"spectra:kv_longest_free_run_perc{{{MODEL}}}", "{{model_name}} {{lane}}"),),
        "Share of all KV blocks.",
    ),
    Panel(
        "Scattered sequences",
        "short",
        (
            Query(gauge("spectra:kv_sequences_scattered", "lane"), "{{lane}}"),
            Query(rate("spectra:kv_blocks_moved_total", "lane"), "{{lane}}: blocks moved per second"),
        ),
    ),
)

PIPELINE = Board("pipeline", "Pipeline", {"Steps": STEPS, "Losses": LOSSES, "Memory": MEMORY})


def _hourly(name: str, legend: str) -> Query:
    return Query(f"sum(increase({name}{{{MODEL}}}[1h]))", legend)


RETRIEVAL = Board(
    "retrieval",
    "Retrieval",
    {
        "Snapshots": (
            Panel(
                "Staleness",
                "s",
                (Query(f"spectra:retrieval_staleness_seconds{{{MODEL}}}", "{{namespace}}"),),
                "Since the store last said that what is served is current. *: the most stale of all other namespaces.",
            ),
            Panel(
                "Tokens that are looked up",
                "short",
                (Query(f"spectra:retrieval_snapshot_tokens{{{MODEL}}}", "{{namespace}}"),),
            ),
            Panel(
                "Within an hour",
                "short",
                (
                    _hourly("spectra:retrieval_swaps_total", "taken over"),
                    _hourly("spectra:retrieval_refused_total", "refused"),
                ),
            ),
        ),
        "Learning": (
            Panel(
                "Outputs",
                "short",
                (
                    Query(rate("spectra:live_texts_total"), "learnt"),
                    Query(rate("spectra:live_dropped_total"), "lost on the way"),
                ),
                "Per second.",
            ),
            Panel(
                "Made of them within an hour",
                "short",
                (
                    _hourly("spectra:live_deltas_total", "deltas"),
                    _hourly("spectra:live_compactions_total", "snapshots"),
                ),
            ),
        ),
        "Redis": (
            Panel("Up", "short", (Query("redis_up", "{{instance}}"),)),
            Panel(
                "Memory",
                "bytes",
                (
                    Query("redis_memory_used_bytes", "used {{instance}}"),
                    Query("redis_memory_max_bytes", "allowed {{instance}}"),
                ),
            ),
            Panel("Clients", "short", (Query("redis_connected_clients", "{{instance}}"),)),
            Panel("Commands", "ops", (Query(f"rate(redis_commands_processed_total[{WINDOW}])", "{{instance}}"),)),
        ),
    },
)
