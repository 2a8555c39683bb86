"""Who is compared: one module each, run in a process of its own.

A contender is a module with

- ``VARIANTS``: the names it runs under, e.g. one for each path; confined to one CPU unless they say ``threads``;
- ``version() -> str``: of what is measured; raises ImportError where it isn't installed;
- ``decoder(variant, case, src, out)``: a function of no arguments that decodes ``src`` (uint8, rows of blocks) and
  returns the values, in ``out`` (1-D, the case's dtype) where the contender can write into memory it is given, else in
  memory of its own, whose allocation then counts as it does for its users. None where it can't decode the case.

bfloat16 values are uint16 bit patterns.
"""

NAMES = ("ggufx_paths", "ggml", "gguf_package", "libgguf_package", "transformers_torch", "diffusers_torch")
