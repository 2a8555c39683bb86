"""Running programs beside the patched and the unpatched `gguf` package, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROBE = Path(__file__).parent / "compat_probe.py"


def run(*arguments: object, env: dict[str, str] | None = None, text: str = "", timeout: float = 120):
    """Run Python in a process of its own; returns what came out."""
    clean = {k: v for k, v in os.environ.items() if k != "GGUFX_COMPAT"}
    command = [sys.executable, *map(str, arguments)]
    # Away from the source tree, which -m and -c would import instead of what is installed, without its extension.
    return subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=timeout, env=clean | (env or {}), check=False,
        cwd="/",
    )  # fmt: skip


def probe(patch: str, job: str, *files: Path) -> dict[str, object]:
    done = run("-W", "ignore", PROBE, patch, job, *files)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_alike(job: str, *files: Path) -> None:
    """Compare what a job of the probe finds with and without the patches."""
    plain, patched = probe("plain", job, *files), probe("patched", job, *files)
    assert plain
    assert patched.keys() == plain.keys()
    different = {key: (plain[key], patched[key]) for key in plain if patched[key] != plain[key]}
    assert not different


def modules_of(*arguments: str, setting: str | None) -> set[str]:
    code = "import sys; print(*sys.modules)"
    done = run("-c", f"{';'.join(arguments)}\n{code}", env={} if setting is None else {"GGUFX_COMPAT": setting})
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return set(done.stdout.split())
