# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Buffers in, buffers out: the only door between Python and csrc/. No policy here, and no allocation of results."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint64_t


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
    """Decode n values from byte src_start of src into out at byte out_start. The caller has checked everything but that
    src and out lie apart."""
    cdef Py_buffer source, target
    PyObject_GetBuffer(src, &source, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(out, &target, PyBUF_SIMPLE | PyBUF_WRITABLE)
        try:
            if (<size_t>source.buf < <size_t>target.buf + <size_t>target.len
                    and <size_t>target.buf < <size_t>source.buf + <size_t>source.len):
                raise ValueError("out overlaps src")
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


cdef extern from "cpu.h":
    uint64_t ggufx_fp_default()
    void ggufx_fp_restore(uint64_t control)


def fp_default():
    """Set this thread's floating-point control to the language's default; returns what fp_restore takes."""
    return ggufx_fp_default()


def fp_restore(uint64_t control):
    """Set this thread's floating-point control to what fp_default returned."""
    ggufx_fp_restore(control)


cdef extern from "ggufx.h" nogil:
    ctypedef struct ggufx_span:
        const uint8_t *bytes
        uint64_t pos, stop, width
        int big
    enum:
        GGUFX_TENSOR_COLUMNS
    uint64_t ggufx_walk_strings(ggufx_span *s, uint64_t count, uint64_t *starts)
    int ggufx_walk_arrays(ggufx_span *s, uint64_t count, int levels, uint64_t most, uint64_t *starts)
    uint64_t ggufx_walk_tensors(ggufx_span *s, uint64_t count, uint64_t longest, uint64_t *rows, int *status)


cdef int take_span(ggufx_span *s, Py_buffer *view, object buf, uint64_t pos, uint64_t stop, int width,
                   bint big) except -1:
    PyObject_GetBuffer(buf, view, PyBUF_SIMPLE)
    if pos > stop or stop > <uint64_t>view.len:
        PyBuffer_Release(view)
        raise ValueError("the span lies outside the buffer")
    s.bytes, s.pos, s.stop, s.width, s.big = <const uint8_t *>view.buf, pos, stop, width, big
    return 0


cdef int take_words(Py_buffer *view, object out, uint64_t words) except -1:
    PyObject_GetBuffer(out, view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    if <uint64_t>view.len // 8 < words or <uint64_t>view.buf % 8:
        PyBuffer_Release(view)
        raise ValueError("the output is too small or not aligned")
    return 0


def walk_strings(object buf, uint64_t pos, uint64_t stop, uint64_t count, int width, bint big, object starts=None):
    cdef ggufx_span s
    cdef Py_buffer view, out
    cdef uint64_t *words = NULL
    cdef uint64_t done
    take_span(&s, &view, buf, pos, stop, width, big)
    try:
        if starts is not None:
            take_words(&out, starts, count + 1)
            words = <uint64_t *>out.buf
        with nogil:
            done = ggufx_walk_strings(&s, count, words)
        if words != NULL:
            PyBuffer_Release(&out)
    finally:
        PyBuffer_Release(&view)
    return s.pos, done


def walk_arrays(object buf, uint64_t pos, uint64_t stop, uint64_t count, int width, bint big, int levels,
                uint64_t most, object starts=None):
    cdef ggufx_span s
    cdef Py_buffer view, out
    cdef uint64_t *words = NULL
    cdef int status
    take_span(&s, &view, buf, pos, stop, width, big)
    try:
        if starts is not None:
            take_words(&out, starts, count)
            words = <uint64_t *>out.buf
        with nogil:
            status = ggufx_walk_arrays(&s, count, levels, most, words)
        if words != NULL:
            PyBuffer_Release(&out)
    finally:
        PyBuffer_Release(&view)
    return s.pos, status


def walk_tensors(object buf, uint64_t pos, uint64_t stop, uint64_t count, int width, bint big, uint64_t longest,
                 object rows):
    cdef ggufx_span s
    cdef Py_buffer view, out
    cdef uint64_t done
    cdef int status
    take_span(&s, &view, buf, pos, stop, width, big)
    try:
        take_words(&out, rows, count * GGUFX_TENSOR_COLUMNS)
        with nogil:
            done = ggufx_walk_tensors(&s, count, longest, <uint64_t *>out.buf, &status)
        PyBuffer_Release(&out)
    finally:
        PyBuffer_Release(&view)
    return s.pos, done, status


cdef extern from "ggufx.h" nogil:
    int ggufx_encodes(int type)
    int ggufx_all_finite(int path, const float *x, size_t n)
    size_t ggufx_encode(int path, int type, const float *x, const float *qw, const void *const *lattice, size_t rows,
                        size_t width, int check, uint8_t *out)


def encodes(int type):
    """Whether the encoders make a ggml type id."""
    return bool(ggufx_encodes(type))


def all_finite(int path, x):
    """Whether none of the float32 values of a buffer is NaN or infinite."""
    cdef Py_buffer values
    cdef int finite
    PyObject_GetBuffer(x, &values, PyBUF_SIMPLE)
    with nogil:
        finite = ggufx_all_finite(path, <const float *>values.buf, values.len // 4)
    PyBuffer_Release(&values)
    return bool(finite)


def encode(int path, int type, x, qw, lattice, bint check, out):
    """Quantize float32 rows into out (rows, bytes per row); returns how many scales overflowed, or with `check` -1 if a
    value isn't finite. The caller has checked everything else."""
    cdef Py_buffer views[7]
    cdef int held = 0, i
    cdef const float *weights = NULL
    cdef const void *tables[4]
    cdef size_t rows = x.shape[0], width = x.shape[1], overflowed
    for i in range(4):
        tables[i] = NULL
    try:
        PyObject_GetBuffer(x, &views[0], PyBUF_SIMPLE)
        held = 1
        PyObject_GetBuffer(out, &views[1], PyBUF_SIMPLE | PyBUF_WRITABLE)
        held = 2
        if qw is not None:
            PyObject_GetBuffer(qw, &views[2], PyBUF_SIMPLE)
            held = 3
            weights = <const float *>views[2].buf
        if lattice is not None:
            for i in range(4):
                PyObject_GetBuffer(lattice[i], &views[held], PyBUF_SIMPLE)
                tables[i] = views[held].buf
                held += 1
        with nogil:
            overflowed = ggufx_encode(path, type, <const float *>views[0].buf, weights, tables, rows, width, check,
                                      <uint8_t *>views[1].buf)
    finally:
        for i in range(held):
            PyBuffer_Release(&views[i])
    return <Py_ssize_t>overflowed


cdef extern from "ggufx.h" nogil:
    void ggufx_matmul(int path, int type, const float *x, size_t rows, size_t width, const void *packed, size_t count,
                      float *out, size_t stride)
    int ggufx_multiplies_codes(int path)
    size_t ggufx_codes_size(size_t groups)
    void ggufx_store_codes(int path, const float *x, size_t groups, void *codes)
    void ggufx_matmul_codes(int path, int type, const float *x, const void *codes, size_t rows, size_t width,
                            const void *packed, size_t count, float *out, size_t stride)


def multiplies_codes(int path):
    """Whether a path multiplies x as codes of eight bits."""
    return bool(ggufx_multiplies_codes(path))


def codes_of(int path, x):
    """The float32 values of a buffer, a multiple of 32, as what `matmul` takes for codes."""
    cdef Py_buffer values, target
    PyObject_GetBuffer(x, &values, PyBUF_SIMPLE)
    try:
        codes = bytearray(ggufx_codes_size(values.len // 128))
        PyObject_GetBuffer(codes, &target, PyBUF_SIMPLE | PyBUF_WRITABLE)
        with nogil:
            ggufx_store_codes(path, <const float *>values.buf, values.len // 128, target.buf)
        PyBuffer_Release(&target)
    finally:
        PyBuffer_Release(&values)
    return codes


def matmul(int path, int type, x, codes, Py_ssize_t rows, Py_ssize_t width, packed, Py_ssize_t packed_start, out,
           Py_ssize_t out_start, Py_ssize_t count, Py_ssize_t stride):
    """Products of rows of float32, or of their `codes`, with `count` packed rows from byte packed_start on, into column
    out_start and those after it of float32 rows of `stride`. The caller has checked everything."""
    cdef Py_buffer views[4]
    cdef int held = 0, i
    try:
        PyObject_GetBuffer(x, &views[0], PyBUF_SIMPLE)
        held = 1
        PyObject_GetBuffer(packed, &views[1], PyBUF_SIMPLE)
        held = 2
        PyObject_GetBuffer(out, &views[2], PyBUF_SIMPLE | PyBUF_WRITABLE)
        held = 3
        if codes is None:
            with nogil:
                ggufx_matmul(path, type, <const float *>views[0].buf, rows, width,
                             <const char *>views[1].buf + packed_start, count, <float *>views[2].buf + out_start, stride)
        else:
            PyObject_GetBuffer(codes, &views[3], PyBUF_SIMPLE)
            held = 4
            with nogil:
                ggufx_matmul_codes(path, type, <const float *>views[0].buf, views[3].buf, rows, width,
                                   <const char *>views[1].buf + packed_start, count,
                                   <float *>views[2].buf + out_start, stride)
    finally:
        for i in range(held):
            PyBuffer_Release(&views[i])
