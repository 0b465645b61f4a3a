"""What a step asks of a GPU, counted on a pretended one, and that it computes the same there."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from benchmarks.gpu.counting.counter import counted
from benchmarks.gpu.counting.drafts import counted_draft
from benchmarks.gpu.counting.pretended import move_to_pretended, pretended_cuda
from benchmarks.gpu.counting.steps import FAST, GRAPHS, LAUNCHES, counted_step

CPU = torch.device("cpu")


@pytest.mark.parametrize(("n_sequences", "n_nodes"), [(1, 0), (1, 63), (8, 0), (8, 63)])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_step_is_one_upload_one_download_and_one_wait_however_many_sequences(
    n_sequences: int, n_nodes: int, temperature: float
) -> None:
    step = counted_step(CPU, n_sequences, n_nodes, temperature)
    assert (step.forward.uploads, step.forward.downloads, step.forward.waits) == (1, 0, 0)
    assert step.per_layer <= (52 if n_nodes else 40)
    assert step.rest <= 6
    assert (step.verify.uploads, step.verify.downloads, step.verify.waits) == (0, 1, 1)
    assert step.verify.ops <= (44 if temperature else 11)


def test_a_chunk_of_a_prompt_is_causal_attention_without_a_mask() -> None:
    step = counted_step(CPU, 2, 0, 0.0, chunk=64)
    assert (step.forward.uploads, step.forward.waits) == (1, 0)
    assert step.per_layer <= 41
    assert step.forward.by_name["_flash_attention_forward"] == 1
    assert not step.forward.by_name["bmm"]


@pytest.mark.parametrize(("n_sequences", "n_nodes", "chunk"), [(1, 0, 0), (8, 63, 0), (2, 0, 64)])
def test_an_exact_step_is_two_graphs_whatever_it_draws(n_sequences: int, n_nodes: int, chunk: int) -> None:
    step = counted_step(CPU, n_sequences, n_nodes, 0.8, chunk, GRAPHS)
    assert step.per_layer == 0
    assert step.forward.by_name == {"copy_": 1, "graph": 1, "clone": 1}, "the plan, and what the next step writes over"
    assert step.verify.by_name == {"_embed": 1, "copy_": 1, "graph": 1}, "rows are picked, the plan"
    assert (step.forward.uploads, step.forward.downloads, step.forward.waits) == (1, 0, 0)
    assert (step.verify.uploads, step.verify.downloads, step.verify.waits) == (0, 1, 1)


def test_an_exact_step_launch_by_launch() -> None:
    step = counted_step(CPU, 8, 63, 0.8, way=LAUNCHES)
    assert step.per_layer == 10
    assert step.rest == 2, "moves, embedding"
    assert step.verify.ops == 6, "rows are picked, norm, head, draw"
    assert (step.uploads, step.waits) == (1, 1)


@pytest.mark.parametrize("n_sequences", [1, 8])
@pytest.mark.parametrize(("kind", "fast", "others"), [("eagle 3", 92, 26), ("p-eagle", 88, 31), ("dflash", 480, 21)])
def test_forwards_of_a_drafter_are_graphs(kind: str, fast: int, others: int, n_sequences: int) -> None:
    by_modules, found = (counted_draft(CPU, kind, n_sequences, way) for way in (FAST, GRAPHS))
    assert by_modules.ops <= fast * by_modules.waits
    n_forwards = found.waits  # each is waited for once: the host chooses what is drafted
    assert found.by_name["graph"] == (2 if kind == "dflash" else n_forwards), "dflash: what is committed, and the block"
    assert found.ops - found.by_name["graph"] <= others * n_forwards
    assert found.uploads <= 2 * n_forwards + 2


def test_what_is_loaded_behind_a_pretended_device_is_whole() -> None:
    """Torch keeps the functions that a device is for, as they are at its first use."""
    code = (
        "import torch\n"
        "from benchmarks.gpu.counting.pretended import pretended_cuda\n"
        "with pretended_cuda(), torch.device('meta'):\n    torch.empty(1)\n"
        "with torch.device('meta'):\n    print(torch.tensor(1.0).device)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "meta\n"


def test_the_counter_sees_what_it_is_there_for() -> None:
    model = torch.nn.Linear(4, 4)
    move_to_pretended(model)
    with pretended_cuda() as device, counted() as counts:
        rows = torch.zeros(3, 4, device=device)
        index = torch.tensor([2, 0], device=device)
        picked = model(rows[:, :2].repeat(1, 2)).index_select(0, index)
        assert picked.device == device
        assert len(picked.tolist()) == 2
        assert float(picked[0, 0]) == float(model.bias.cpu()[0])
        rows[torch.tensor([True, False, True], device=device)]
        torch.cuda.current_stream(device).synchronize()
    assert (counts.uploads, counts.downloads) == (2, 3)
    assert counts.waits == counts.uploads + counts.downloads + 2
    assert counts.by_name == {"zeros": 1, "repeat": 1, "addmm": 1, "index_select": 1, "index": 1}
