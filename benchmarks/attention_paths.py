"""One masked attention call against prefix and tree apart (merged by log-sum-exp), by prefix length, on this CPU.

Tells what ``engine.attention.segment.SPLIT_FROM`` should be. Last line: one JSON document.

    python -m benchmarks.attention_paths [--heads 3] [--head-dim 64] [--nodes 64]
"""

from __future__ import annotations

import argparse
import json

import torch

from benchmarks.timing import interleaved
from engine.attention.kernels import block_attention, merge


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=3, help="query heads that share one key head (default: 3)")
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--nodes", type=int, default=64, help="rows of the tree (default: 64)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    n_q = arguments.heads * arguments.nodes
    scale = arguments.head_dim**-0.5
    results = {}
    print("| prefix | one masked call, us | split and merged, us | split/one |\n|---|---|---|---|")
    for prefix in (64, 128, 256, 512, 1024, 2048, 4096):
        with torch.inference_mode():
            n_k = prefix + arguments.nodes
            q = torch.randn(1, 1, n_q, arguments.head_dim)
            k, v = torch.randn(2, n_k, 1, arguments.head_dim).transpose(1, 2)[:, None].unbind(0)
            mask = torch.zeros(n_q, n_k)
            tree_mask = torch.zeros(n_q, arguments.nodes)

            def masked(q: torch.Tensor = q, k: torch.Tensor = k, v: torch.Tensor = v, m: torch.Tensor = mask) -> None:
                block_attention(q, k, v, m, scale)

            def split(
                q: torch.Tensor = q,
                k: torch.Tensor = k,
                v: torch.Tensor = v,
                m: torch.Tensor = tree_mask,
                n: int = prefix,
            ) -> None:
                merge(
                    *block_attention(q, k[:, :, :n], v[:, :, :n], None, scale),
                    *block_attention(q, k[:, :, n:], v[:, :, n:], m, scale),
                )

            one, two = interleaved(masked, split, runs=60, warmup=5)
        results[prefix] = {"masked_us": one * 1e6, "split_us": two * 1e6}
        print(f"| {prefix} | {one * 1e6:.0f} | {two * 1e6:.0f} | {two / one:.2f} |", flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
