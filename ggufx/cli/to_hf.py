"""Write a GGUF file as a Hugging Face checkpoint: safetensors, config.json and the tokenizer's files."""

from __future__ import annotations

import argparse

from .progressbar import add_progress_argument, progress_bar
from .terminal import printable, warnings_as_lines

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("input", metavar="FILE", help="a GGUF file")
    parser.add_argument("output", metavar="DIR", help="the folder to write; it is made where it isn't there")
    parser.add_argument("--config", metavar="FILE", help="the original config.json, where the file doesn't say enough")
    parser.add_argument("--dtype", metavar="TYPE", help="float32, float16 or bfloat16 (default: the file's own)")
    add_progress_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write and report."""
    from ..convert.save import save_checkpoint

    with warnings_as_lines(), progress_bar(arguments.progress, "to-hf") as progress:
        done = save_checkpoint(
            arguments.input, arguments.output, config=arguments.config, dtype=arguments.dtype, progress=progress
        )
    print(f"{printable(arguments.output)}: {done.class_name}, {done.dtype}, {done.tensors} tensors")
    if done.tokenizer:
        print(f"no tokenizer's files: {printable(done.tokenizer)}")
    return 0
