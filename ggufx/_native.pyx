# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Buffers in, buffers out: the only door between Python and csrc/. No policy here, and no allocation of results."""
