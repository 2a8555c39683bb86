"""Build the one C extension. Everything declarative stands in pyproject.toml.

Environment
-----------
GGUFX_SANITIZE : e.g. ``address,undefined``; builds with these sanitizers, for the tests.
GGUFX_REQUIRE_NATIVE : ``1`` makes a failed compile an error. Without it the install falls back to the numpy path.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

MSVC = sys.platform == "win32"
# -ffp-contract=off: gcc's gnu modes fuse a*b-c into one rounding, which changes decoded bits.
FLAGS = ["/O2", "/fp:precise"] if MSVC else ["-std=c11", "-O2", "-ffp-contract=off"]
# Python's own flags have -g, which makes the extension twelve times as large; who wants it sets CFLAGS.
if not MSVC and "-g" not in os.environ.get("CFLAGS", ""):
    FLAGS += ["-g0"]
LINK = []
if sanitize := os.environ.get("GGUFX_SANITIZE"):
    FLAGS += [f"-fsanitize={sanitize}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g"]
    LINK += [f"-fsanitize={sanitize}"]


def processors():
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class BuildPy(build_py):
    """Puts the .pth file at the wheel's root, so that it is in the wheel's record and goes when it goes."""

    def run(self):
        super().run()
        self.copy_file("ggufx_compat.pth", os.path.join(self.build_lib, "ggufx_compat.pth"))

    def get_outputs(self, include_bytecode=True):
        return [*super().get_outputs(include_bytecode), os.path.join(self.build_lib, "ggufx_compat.pth")]


class BuildExt(build_ext):
    """Compiles several sources at once, and puts the extension into a clone's own package too.

    ``python -m ggufx.bench`` in the clone imports the clone's package before the installed one, and would run without
    kernels although the install has them.
    """

    def build_extension(self, ext):
        one_by_one = self.compiler.compile

        def side_by_side(sources, **options):
            with ThreadPoolExecutor(processors()) as pool:
                objects = pool.map(lambda source: one_by_one([source], **options), sources)
                return [path for paths in objects for path in paths]

        if not MSVC:  # its compiler object is set up by its first call
            self.compiler.compile = side_by_side
        super().build_extension(ext)

    def run(self):
        super().run()
        if not self.inplace and not sanitize and os.path.exists(".git"):
            self.copy_extensions_to_source()


setup(
    cmdclass={"build_py": BuildPy, "build_ext": BuildExt},
    ext_modules=[
        Extension(
            "ggufx._native",
            # In this order the ones that take longest come first, scalar.c before all.
            sources=[*sorted(glob("csrc/paths/*.c"), reverse=True), "ggufx/_native.pyx", *sorted(glob("csrc/*.c"))],
            depends=sorted(glob("csrc/**/*.h", recursive=True) + glob("csrc/*.def")),
            include_dirs=["csrc"],
            extra_compile_args=FLAGS,
            extra_link_args=LINK,
            libraries=[] if MSVC else ["m"],
            optional=os.environ.get("GGUFX_REQUIRE_NATIVE") != "1",
        )
    ],
)
