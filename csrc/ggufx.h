/* The C interface of ggufx: everything Cython may call. Nothing here allocates, starts threads, logs or fails. */
#ifndef GGUFX_H
#define GGUFX_H

#include <stddef.h>
#include <stdint.h>

#endif
