/* The C interface of ggufx: everything Cython may call. Nothing here allocates, starts threads, logs or fails. */
#ifndef GGUFX_H
#define GGUFX_H

#include <stddef.h>
#include <stdint.h>

/* ---- paths: dispatch.c ---- */

/* Names of all paths, best first; NULL past the end. */
const char *ggufx_path_name(int path);

/* NULL if the path can run here, else the reason why not. */
const char *ggufx_path_problem(int path);

/* The compiler that built this. */
const char *ggufx_compiler(void);

/* ---- decoding: driver.c ---- */

enum { GGUFX_F32, GGUFX_F16, GGUFX_BF16, GGUFX_DTYPES };

/* Whether the C kernels decode this ggml type id. */
int ggufx_decodes(int type);

/* Decodes n values of a ggml type into dst. The caller has checked that the path runs here, that src holds the
 * blocks of n values, that n is a whole number of blocks, and that dst is aligned to its items and holds n of them.
 * stream: write past the cache, for outputs that don't fit in it. */
void ggufx_decode(int path, int type, int dtype, const void *src, void *dst, size_t n, int stream);

/* ---- products with packed rows: matmul.c ---- */

/* out[r * stride + n] = the dot product of row r of x, `width` floats, with the n-th of `count` packed rows, which
 * follow one another without gaps. Its bits depend on path, row and packed row alone. The caller has checked that the
 * path runs here, that the type has a kernel, the sizes, and that `width` is a whole number of ggml's blocks. */
void ggufx_matmul(int path, int type, const float *x, size_t rows, size_t width, const void *packed, size_t count,
                  float *out, size_t stride);

/* Whether the path multiplies codes with codes. */
int ggufx_multiplies_codes(int path);

/* Bytes that `groups` times 32 values of x take as codes, wherever they begin. */
size_t ggufx_codes_size(size_t groups);

/* Values of x as codes, for ggufx_matmul_codes. */
void ggufx_store_codes(int path, const float *x, size_t groups, void *codes);

/* As ggufx_matmul, of a block type, with x rounded to codes; where a product isn't finite, as ggufx_matmul has it. */
void ggufx_matmul_codes(int path, int type, const float *x, const void *codes, size_t rows, size_t width,
                        const void *packed, size_t count, float *out, size_t stride);

/* ---- quantizing: encode.c ---- */

/* Whether the C encoders make this ggml type id. */
int ggufx_encodes(int type);

/* Whether none of n floats is NaN or infinite. */
int ggufx_all_finite(int path, const float *x, size_t n);

/* Quantizes rows of finite floats; `check`: returns SIZE_MAX if one isn't, having written some of the output. qw: the
 * importance of each column, or NULL; types that need one must have it. lattice: place, count, neighbours and words of
 * ggufx/codec/reference/lattice.py for the IQ1, IQ2 and IQ3 types. Returns the number of blocks whose half-precision
 * scale overflowed. The caller has checked path, type, width and sizes. */
size_t ggufx_encode(int path, int type, const float *x, const float *qw, const void *const *lattice, size_t rows,
                    size_t width, int check, uint8_t *out);

/* ---- reading headers: walk.c ---- */

/* A stretch [pos, stop) of a GGUF header. width: bytes of a count or length, 4 in version 1 and 8 after it. */
typedef struct {
    const uint8_t *bytes;
    uint64_t pos, stop, width;
    int big;
} ggufx_span;

enum { GGUFX_OK, GGUFX_SHORT, GGUFX_TOO_DEEP, GGUFX_BAD_TYPE, GGUFX_TOO_MANY };
enum { GGUFX_TENSOR_COLUMNS = 9 };

/* Each moves s->pos over what it could read. `starts` may be NULL; otherwise it takes where each element begins:
 * strings after their length, with starts[count] = end + width, so that a length is a difference; arrays at their item
 * type. */
uint64_t ggufx_walk_strings(ggufx_span *s, uint64_t count, uint64_t *starts);
/* `levels`: how many arrays may still lie inside one another; `most`: elements allowed in one array. */
int ggufx_walk_arrays(ggufx_span *s, uint64_t count, int levels, uint64_t most, uint64_t *starts);
/* rows: name position, name length, n_dims, four dimensions (1 where absent), type, offset. Returns whole rows. */
uint64_t ggufx_walk_tensors(ggufx_span *s, uint64_t count, uint64_t longest, uint64_t *rows, int *status);

#endif
