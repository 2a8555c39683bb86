"""Find what is wrong with a file: metadata, layout, every block's values, checksums."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from ..evaluate.findings import ERROR
from ..evaluate.manifest import write_manifest
from ..evaluate.validation import Validation, validate
from . import sample
from .progressbar import add_progress_argument, progress_bar
from .terminal import printable

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", nargs="?", metavar="FILE", help="a GGUF file (default: the sample model)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--strict", action="store_true", help="exit with 1 for warnings too")
    parser.add_argument("--quick", action="store_true", help="judge metadata and tensor infos only, decode nothing")
    parser.add_argument("--checksums", action="store_true", help="print the SHA-256 of every tensor's packed bytes")
    parser.add_argument("--manifest", metavar="OUT", help="write the checksums of tensors and metadata to OUT, JSON")
    parser.add_argument("--check", metavar="MANIFEST", help="hold the file against a manifest")
    parser.add_argument("--threads", type=int, metavar="N", help="at most N threads (default: all)")
    add_progress_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; the exit code is 1 if one of them is an error."""
    wanted = arguments.checksums or arguments.manifest is not None
    with (
        sample.path_or_sample(arguments.file) as path,
        progress_bar(arguments.progress, "validate") as progress,
    ):
        result = validate(
            path,
            values=not arguments.quick,
            checksums=wanted,
            check=arguments.check,
            threads=arguments.threads,
            progress=progress,
        )
        if arguments.manifest is not None and result.manifest is not None:
            inputs = [] if "://" in str(path) else [str(path)]
            write_manifest(result.manifest, arguments.manifest, inputs)
    if arguments.json:
        json.dump(_report(result), sys.stdout, indent=1)
        print()
    else:
        _print(result, arguments.checksums)
    return 0 if result.ok and not (arguments.strict and result.findings) else 1


def _report(result: Validation) -> dict[str, Any]:
    report: dict[str, Any] = {
        "path": result.path,
        "ok": result.ok,
        "tensors": result.tensors,
        "findings": [finding.as_dict() for finding in result.findings],
    }
    if result.manifest is not None:
        report["manifest"] = result.manifest
    return report


def _print(result: Validation, checksums: bool) -> None:
    if checksums:
        for name, digest in result.checksums.items():
            print(f"{digest}  {printable(name)}")
    for finding in result.findings:
        print(printable(str(finding)))
    errors = sum(finding.severity == ERROR for finding in result.findings)
    print(
        f"{printable(result.path)}: {result.tensors} tensors, {errors} errors, {len(result.findings) - errors} warnings"
    )
