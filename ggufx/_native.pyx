# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Buffers in, buffers out: the only door between Python and csrc/. No policy here, and no allocation of results."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer


cdef extern from "ggufx.h" nogil:
    const char *ggufx_path_name(int path)
    const char *ggufx_path_problem(int path)
    const char *ggufx_compiler()
    int ggufx_decodes(int type)
    void ggufx_decode(int path, int type, int dtype, const void *src, void *dst, size_t n, int stream)


def paths():
    """All paths of the kernels, best first: (name, why it can't run here or None)."""
    cdef int i = 0
    found = []
    while ggufx_path_name(i) != NULL:
        problem = ggufx_path_problem(i)
        found.append((ggufx_path_name(i).decode(), None if problem == NULL else problem.decode()))
        i += 1
    return tuple(found)


def compiler():
    """Name and version of the compiler that built the kernels."""
    return ggufx_compiler().decode()


def decodes(int type):
    """Whether the kernels decode a ggml type id."""
    return bool(ggufx_decodes(type))


def decode(int path, int type, int dtype, src, Py_ssize_t src_start, out, Py_ssize_t out_start, Py_ssize_t n,
           bint stream):
    """Decode n values from byte src_start of src into out at byte out_start. The caller has checked everything."""
    cdef Py_buffer source, target
    PyObject_GetBuffer(src, &source, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(out, &target, PyBUF_SIMPLE | PyBUF_WRITABLE)
        try:
            if n < 4096:  # a few hundred nanoseconds of work: handing the GIL over would cost more
                ggufx_decode(path, type, dtype, <const char *>source.buf + src_start, <char *>target.buf + out_start,
                             n, stream)
            else:
                with nogil:
                    ggufx_decode(path, type, dtype, <const char *>source.buf + src_start,
                                 <char *>target.buf + out_start, n, stream)
        finally:
            PyBuffer_Release(&target)
    finally:
        PyBuffer_Release(&source)
