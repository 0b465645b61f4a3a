"""Brings a model of the hub into a folder: whole, verified, and under its name only then.

Environment: MODEL (hub id), REVISION (commit), NAME (of the folder that it becomes), HF_TOKEN.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download

PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
SUMS = "SHA256SUMS"


def main() -> None:
    """Fetch, unless the folder holds this revision already."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, required=True, metavar="FOLDER", help="where the folder NAME goes")
    into: Path = parser.parse_args().into
    model, revision, name = (os.environ[key] for key in ("MODEL", "REVISION", "NAME"))
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise SystemExit(f"REVISION is {revision!r}; it must be a commit, 40 hexadecimal digits: branches move")
    target = into / name
    mark = f"# {model} {revision}\n"
    if target.exists():
        if not (target / SUMS).read_text().startswith(mark):
            raise SystemExit(
                f"{target} holds another model or revision, which pods may be reading; choose another NAME"
            )
        print(f"{target} has {model} at {revision}")
        return
    partial = into / f".{name}.partial"  # what an attempt before has brought is kept
    snapshot_download(model, revision=revision, local_dir=partial, allow_patterns=PATTERNS, max_workers=8)
    shutil.rmtree(partial / ".cache", ignore_errors=True)
    (partial / SUMS).write_text(mark + verified_sums(model, revision, partial))
    partial.rename(target)
    print(f"{target} has {model} at {revision}")


def verified_sums(model: str, revision: str, folder: Path) -> str:
    """Lines for ``sha256sum --check``; large files must have the hashes that the hub tells."""
    told = {
        file.rfilename: file.lfs.sha256
        for file in HfApi().model_info(model, revision=revision, files_metadata=True).siblings or []
        if file.lfs is not None
    }
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUMS)
    with ThreadPoolExecutor(8) as pool:
        sums = dict(zip((str(path.relative_to(folder)) for path in files), pool.map(sha256, files), strict=True))
    for name, digest in sums.items():
        if told.get(name, digest) != digest:
            (folder / name).unlink()
            raise SystemExit(
                f"{name} has sha256 {digest}, the hub says {told[name]}; it is fetched anew at the next try"
            )
    return "".join(f"{digest}  {name}\n" for name, digest in sums.items())


def sha256(path: Path) -> str:
    """Digest of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main()
