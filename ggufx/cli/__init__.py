"""The ``ggufx`` command: finds the subcommand, and turns every failure into one line and an exit code.

A subcommand is a module here with a docstring, ``add_arguments(parser)`` and ``run(arguments) -> exit code``.
Exit codes: 0 done, 1 the file or the system failed, 2 wrong arguments, 130 interrupted, 141 the reader went away, 128
and the signal's number if one ended the command.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

from .terminal import printable, some_streams, tell, warnings_as_lines

__all__ = ["main"]

# Subcommands in the order of the help; each is a module of this package.
COMMANDS = (
    *("info", "decode", "convert", "to-hf", "quantize", "plan", "validate", "compare", "evaluate"),
    *("perplexity", "imatrix", "curve"),
    *("edit", "split", "merge", "endian", "compat", "sample"),
)


def _module(command: str) -> ModuleType:
    return importlib.import_module(f".{command.replace('-', '_')}", __package__)


def _first_line(module: ModuleType) -> str:
    return (module.__doc__ or "").split("\n", 1)[0]


def _overview() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ggufx",
        usage="ggufx COMMAND ... | ggufx FILE | ggufx --info",
        description="Open GGUF model files, decode their tensors.",
        epilog="commands:\n"
        + "\n".join(f"  {name:10} {_first_line(_module(name))}" for name in COMMANDS)
        + "\n\n`ggufx FILE` is `ggufx info FILE`. `ggufx COMMAND --help` tells more. Without a FILE, info, decode and "
        "plan\nuse a small sample model that comes with ggufx.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--info", action="store_true", help="print version, decode paths and build")
    parser.add_argument("--version", action="store_true", help="print the version")
    return parser


def _dispatch(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        _overview().print_help()
        return 0
    if argv[0] in ("--info", "--version"):
        _overview().parse_args(argv)
        from .build import report, version

        print("\n".join(report()) if argv[0] == "--info" else version())
        return 0
    command, rest = (argv[0], argv[1:]) if argv[0] in COMMANDS else ("info", argv)
    if command == "info" and rest is argv and (hint := _mistyped(argv[0])):
        raise ValueError(f"there is no file and no command {argv[0]!r}{hint}")
    module = _module(command)
    parser = argparse.ArgumentParser(prog=f"ggufx {command}", description=module.__doc__)
    module.add_arguments(parser)
    code: int = module.run(parser.parse_args(rest))
    sys.stdout.flush()
    return code


def _mistyped(word: str) -> str:
    """Near commands for a word that is neither a command nor a file."""
    if word.startswith("-") or "://" in word or os.path.exists(word):
        return ""
    from ..errors import near_names

    return near_names(word, COMMANDS)


@contextmanager
def _unwinding() -> Iterator[None]:
    """Let a signal that would end the process at once unwind it instead, so that no half-written file stays."""
    signals = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():  # handlers can only be set there
        signals = []
    before = {number: signal.getsignal(number) for number in signals}
    for number, handler in before.items():
        if handler is signal.SIG_DFL:  # nohup's choice, or the caller's own handler, stays
            signal.signal(number, _leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is signal.SIG_DFL:
                signal.signal(number, handler)


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _complain(error: BaseException) -> None:
    message = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    tell(f"ggufx: {printable(' '.join(message.split()))}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; ``sys.argv[1:]`` by default.

    Returns
    -------
    int
        The exit code.
    """
    with some_streams():
        return _run(sys.argv[1:] if argv is None else argv)


def _run(argv: Sequence[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")  # a name must not fail to print on an ASCII terminal
    from ..errors import GGUFError

    try:
        with _unwinding(), warnings_as_lines():
            return _dispatch(argv)
    except BrokenPipeError:
        # Whoever read our output has enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
    except (GGUFError, OSError, ImportError, MemoryError, OverflowError) as error:
        _complain(error)
        return 1
    except (ValueError, TypeError) as error:
        _complain(error)
        return 2
