"""Convert a Hugging Face checkpoint to a GGUF file, in a plain type or in a mix of llama-quantize."""

from __future__ import annotations

import argparse

from ..formats.tensor_types import QType
from ..sizes import format_size
from .progressbar import add_progress_argument, progress_bar
from .terminal import printable, warnings_as_lines

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("input", metavar="DIR", help="a folder with config.json, weights and the tokenizer's files")
    parser.add_argument("output", metavar="OUT", help="the file to write")
    parser.add_argument(
        "--type", default="auto", metavar="TYPE", help="f32 f16 bf16 q8_0 tq1_0 tq2_0 auto, or a mix such as Q4_K_M"
    )
    parser.add_argument("--pre", metavar="NAME", help="the pre-tokenizer's name, where it can't be found")
    parser.add_argument("--base", metavar="DIR", help="for an adapter: its model's folder, or config.json's")
    parser.add_argument("--imatrix", metavar="FILE", help="for a mix: importance matrix, as .dat or .gguf")
    parser.add_argument(
        "--tensor-type",
        action="append",
        default=[],
        metavar="PATTERN=TYPE",
        help="for a mix: type of the tensors that match",
    )
    parser.add_argument("--output-tensor-type", metavar="TYPE", help="for a mix: type of output.weight")
    parser.add_argument("--token-embedding-type", metavar="TYPE", help="for a mix: type of the token embeddings")
    parser.add_argument("--pure", action="store_true", help="for a mix: its default type for every tensor")
    parser.add_argument("--leave-output-tensor", action="store_true", help="for a mix: keep output.weight as it is")
    parser.add_argument("--name", help="the model's name in the metadata, whatever the folder says")
    parser.add_argument("--fuse-qkv", action="store_true", help="queries, keys and values of a layer as one tensor")
    parser.add_argument(
        "--fuse-gate-up", action="store_true", help="gates and inputs of a layer's experts as one tensor"
    )
    parser.add_argument("--fp8-as-q8", action="store_true", help="weights of 8-bit floats become Q8_0")
    parser.add_argument("--threads", type=int, metavar="N", help="threads at most")
    add_progress_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Convert and report."""
    from ..convert import convert

    with warnings_as_lines(), progress_bar(arguments.progress, "convert") as progress:
        done = convert(
            arguments.input,
            arguments.output,
            arguments.type,
            pre=arguments.pre,
            name=arguments.name,
            fuse_qkv=arguments.fuse_qkv,
            fuse_gate_up=arguments.fuse_gate_up,
            fp8_as_q8=arguments.fp8_as_q8,
            base=arguments.base,
            imatrix=arguments.imatrix,
            tensor_types=arguments.tensor_type,
            output_type=_type(arguments.output_tensor_type),
            embedding_type=_type(arguments.token_embedding_type),
            pure=arguments.pure,
            leave_output=arguments.leave_output_tensor,
            threads=arguments.threads,
            progress=progress,
        )
    for path in done.paths:
        print(f"{printable(path)}: {done.arch}, {done.type}, {done.tensors} tensors, {format_size(done.nbytes)}")
    return 0


def _type(name: str | None) -> QType | None:
    return None if name is None else QType.parse(name)
