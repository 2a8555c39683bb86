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

#endif
