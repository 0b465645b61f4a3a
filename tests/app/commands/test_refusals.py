"""A command line that cannot run ends with status 2 and one sentence: the flag, its value and what is allowed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.support.spectra_command import run_cli

# The test has a folder ``tiny`` with a model; a hub id of this name is not looked at before a light refusal.
GENERATE = "generate --model tiny --prompt a"
BENCH = "bench --model tiny --methods pld --prompts prompts.jsonl --out out"
TRAIN = "train --target tiny --method eagle --out out"
FIND = "heads find --model tiny --out out.json"
PLAN = "plan --model tiny --gpus 8 --gpu-memory-gib 80"

FILES = {
    "prompts.jsonl": b'{"turns": ["a tale"]}',
    "wrong.jsonl": b'{"turns": ["ok"]}\n{"turns": "not a list"}',
    "empty.jsonl": b'{"turns": [""]}',
    "text": b"text",
    "bytes": b"\xff\xfe\xfd",
    "broken.yaml": b"a: [",
    "other.yaml": b"http_options: {}",
    "service.yaml": b"kind: RayService",
}
LIGHT = [  # test_light_commands checks that these import nothing heavy, in a folder without the files above
    ("--verzion", "--verzion is an unknown flag; did you mean --version?"),
    ("serve --modle=tiny", "--modle is an unknown flag; did you mean --model"),
    ("serve --max-node 8", "--max-node is an unknown flag; did you mean --max-nodes"),
    ("serve --port 1 extra", "spectra serve: error: unrecognized arguments: extra (see `spectra serve --help`)"),
    ("generate --promt Hi", "--promt is an unknown flag; did you mean --prompt or --prompts?"),
    ("corpus build --inptu x", "spectra corpus build: --inptu is an unknown flag; did you mean --input"),
    ("chat --frobnicate", "--frobnicate is an unknown flag; `spectra chat --help` lists the flags"),
    ("serve tiny --port 1", "spectra serve: 'tiny' is not the value of a flag; did you mean --model tiny?"),
    ("generate --prompt Hello there", "unrecognized arguments: there"),
    ("serve --method magic", "unknown method 'magic'"),
    ("serve --model /nowhere", "model '/nowhere' is neither"),
    ("serve --model .", "model is '.'; that directory holds no config.json"),
    ("serve --max-nodes 99999", "--max-nodes is 99999; it must be at most 4096"),
    ("""serve --pld '{"ngrams": 3}'""", "--pld: ngrams is unknown; it has"),
    ("serve --retrieval /nowhere", "--retrieval /nowhere: no such file or folder"),
    ("serve --device cuda", "--stage-gpus is 0, but --device is cuda"),
    (f"{GENERATE} --method magic", "unknown method 'magic'"),
    (f"{GENERATE} --model /nowhere", "model '/nowhere' is neither"),
    (f"{GENERATE} --threads 0", "--threads is 0; it must be at least 1"),
    (f"{GENERATE} --temperature nan", "--temperature is nan; it must be 0 to 2"),
    ("generate --prompts absent.jsonl", "--prompts absent.jsonl cannot be read"),
    (f"{BENCH} --methods pld,magic", "unknown method 'magic'"),
    (f"{BENCH} --model ./absent", "model './absent' is neither"),
    (f"{BENCH} --repeats 0", "--repeats is 0; it must be at least 1"),
    (f"{BENCH} --prompts absent.jsonl", "--prompts absent.jsonl cannot be read"),
    (f"{FIND} --prompts absent.jsonl", "--prompts absent.jsonl cannot be read"),
    (f"{FIND} --keep 0", "--keep is 0; it must be at least 1"),
    (TRAIN, "there is nothing to train on; give --prompts, --own-questions or --answers"),
    (f"{TRAIN} --prompts absent.jsonl", "--prompts absent.jsonl cannot be read"),
    (f"{TRAIN} --answers absent", "--answers absent does not exist"),
    (f"{TRAIN} --answers . --held-out 1", "--held-out is 1.0; it must be above 0 and below 1"),
    (f"{TRAIN} --answers . --steps 0", "--steps is 0; it must be at least 1"),
    (f"{TRAIN} --answers . --rate -1", "--rate is -1.0; it must be above 0"),
    (f"{TRAIN} --answers . --measured-on absent", "--measured-on absent does not exist"),
    (f"{TRAIN} --answers . --seed -1", "--seed is -1; it must be 0 to 4294967295"),
    (f"{TRAIN} --own-questions 5 --temperature 0", "--own-questions is 5, but --temperature is 0"),
    (f"{TRAIN} --method medusa --answers . --taps 1", "--taps does not apply to --method medusa"),
    (f"{TRAIN} --answers . --taps 1,b", "'1,b' must be a list of layers"),
    ("bench --methods magic --replay x.jsonl --tokenizer tiny", "unknown method 'magic'"),
    ("bench --methods pld --replay x.jsonl --tokenizer /nowhere", "--tokenizer /nowhere"),
    ("load --url http://a:1 --prompts absent.jsonl", "--prompts absent.jsonl cannot be read"),
    ("load --url http://a:1 --concurrency 0", "--concurrency: it is '0'; it must be 1 to 100000"),
    ("corpus build --input x --out y --keep 0", "--keep is 0; it must be at least 1"),
    ("corpus stats absent", "absent"),
]
HEAVY = [
    (f"{GENERATE} --method medusa", "method 'medusa' needs a drafter"),
    (f"{GENERATE} --method pld+pld", "twice"),
    (f"{GENERATE} --dtype int8", "--dtype is int8; it must be float32, bfloat16 or float16"),
    (f"{GENERATE} --stages 9", "--stages is 9; it must be 1 to 4"),
    (f"{GENERATE} --tensor-parallel 3", "tensor_parallel is 3; this model has "),
    (f"{GENERATE} --tensor-parallel 2 --stages 2", "--stages is 2, but --tensor-parallel is 2: this command runs"),
    (f"{GENERATE} --limit 0", "--limit is 0"),
    (f"{GENERATE} --batch-size 0", "--batch-size is 0"),
    (f"{GENERATE} --kv-gib -1", "--kv-gib is -1"),
    (f"{GENERATE} --kv-gib 0.000001", "kv_bytes"),
    ("serve --model tiny --kv-gib 5e6", "--kv-gib is 5e+06; it must be at most "),
    (f"{GENERATE} --kv-gib 5e6", "--kv-gib is 5e+06; it must be at most "),
    (f"{GENERATE} --device tpu", "--device is tpu"),
    (f"{GENERATE} --max-tokens 0", "--max-tokens is 0"),
    (f"{GENERATE} --max-new-tokens 0", "--max-tokens is 0"),  # an older spelling
    (f"{GENERATE} --max-tokens 100000", "maximum context length is"),
    (f"{GENERATE} --top-p 0", "--top-p is 0"),
    (f"{GENERATE} --top-k -1", "--top-k is -1"),
    (f"{GENERATE} --max-nodes -1", "--max-nodes is -1"),
    (f"{GENERATE} --json --color", "not allowed with"),
    (f"{GENERATE} --stages 2 --layer-split 1,2", "layer_split is 1,2: 2 stages with 3 layers"),
    (f"{GENERATE} --stages 2 --stage-memory-gib 0.00001", "stage_memory_gib is 1e-05 for stage"),
    (f"{GENERATE} --prediction text --method pld", "prediction+pld"),
    (f"{GENERATE} --prediction absent", "absent cannot be read"),
    (f"{GENERATE} --prediction bytes", "not UTF-8"),
    (f"{GENERATE} --drafter-options '{{\"depth\": 3}}'", "--drafter-options is given, but --drafter is not"),
    (f"{GENERATE} --method draft-model", "--draft-model DIR"),
    (f"{GENERATE} --draft-model .", "--draft-model: "),
    (
        f"{GENERATE} --method draft-model --draft-model-options '{{\"draft_tokens\": 0}}'",
        "draft_tokens is 0; it must be",
    ),
    (f"{GENERATE} --method rest --retrieval ftp://host/x", "--retrieval: ftp://host/x"),
    ("generate --model tiny --prompts wrong.jsonl", "--prompts wrong.jsonl, line 2"),
    (f"{BENCH} --warm-passes -1", "--warm-passes is -1"),
    (f"{BENCH} --per-category 0", "--per-category is 0"),
    (f"{BENCH} --temperature 0,3", "--temperature is 3.0"),
    (f"{BENCH} --prompts /dev/null", "at least one prompt"),
    (f"{BENCH} --methods pld,", "'pld,' has an empty entry"),
    (f"{BENCH} --temperature hot", "'hot' must be numbers"),
    (f"{BENCH} --state cold,tepid", "'cold,tepid' must be cold, warm"),
    (f"{BENCH} --retrieval nowhere", "--retrieval nowhere: no such"),
    (f"{FIND} --max-tokens 100000", "no room for 100000"),
    (f"{FIND} --prompts empty.jsonl --max-tokens 1", "no induction head was found in 1 prompts"),
    (f"{TRAIN} --prompts prompts.jsonl --work text/a", "--work text/a cannot be created: Not a directory"),
    (f"{TRAIN} --prompts prompts.jsonl --taps 1,9", "--taps is 1,9; layers of this target are 0 to 3"),
    (f"{TRAIN} --method p-eagle --prompts prompts.jsonl --train-depths 2", "it is for eagle"),
    (f"{TRAIN} --prompts prompts.jsonl --train-depths 0", "--train-depths is 0; it must be at least 1"),
    (f"{TRAIN} --prompts prompts.jsonl --depth-decay -1", "--depth-decay is -1.0; it must be at least 0"),
    ("corpus stats", "give either DIR"),
    ("corpus publish here --store there --no-activate --expect 3", "--expect"),
    ("corpus publish here --store there --unused 0", "billion"),
    ("corpus list", "--store"),
    ("corpus list --store ftp://host", "ftp://host"),
    ("corpus list --store ''", "'' is not a folder"),
    ("corpus list --store redis://localhost --namespace ..", "no '.' first"),
    ("corpus list --store redis:/host", "'//' is missing"),
    ("check /nowhere", "/nowhere cannot be read"),
    ("check broken.yaml", "is not YAML"),
    ("check other.yaml", "is no Serve config file: it has no applications"),
    ("check service.yaml", "is a RayService without the text spec.serveConfigV2"),
    ("doctor --model tiny --stages 0", "--stages is 0"),
    ("doctor --gpu-memory-gib -1", "--gpu-memory-gib is -1.0"),
    ("doctor --redis http://a", "--redis: "),
    ("env --haproxy absent/haproxy --install-haproxy", "absent/haproxy: "),
    ("k8s render --folder . --overlay cpu-demo", "(--folder) has no overlays"),
    (f"{PLAN} --usable 2", "--usable is 2.0"),
    (f"{PLAN} --read-gbs fast", "--read-gbs is 'fast'"),
    (f"{PLAN} --nodes 0", "--nodes is 0"),
    (f"{PLAN} --profile magic", "--profile is 'magic'"),
    (f"{PLAN} --model /nowhere", "model '/nowhere' is neither"),
]


@pytest.mark.parametrize(("command", "says"), LIGHT + HEAVY)
def test_a_command_that_cannot_run_is_refused_in_one_line(
    command: str, says: str, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "tiny").symlink_to(tiny_checkpoint)
    monkeypatch.chdir(tmp_path)
    ran = run_cli(*shlex.split(command))
    assert (ran.status, ran.out) == (2, "")
    last = ran.err.splitlines()[-1]
    assert last.startswith("spectra")
    assert says in last
    assert not list(tmp_path.glob("**/*.json"))
