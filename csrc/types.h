/* The rows of types.def as data, for whoever is handed a ggml type id. */
#ifndef GGUFX_TYPES_H
#define GGUFX_TYPES_H

#include <stdint.h>

/* As large as the largest id and one more: ids count from 0. */
union ggufx_every_id {
#define GGUFX_TYPE(name, id, ...) char name[id + 1];
#include "types.def"
#undef GGUFX_TYPE
};

/* The length of every table that ids are indices of. */
enum { GGUFX_IDS = sizeof(union ggufx_every_id) };

typedef struct ggufx_type {
    uint16_t values, bytes; /* of a unit; 0 where no type has the id */
    struct {
        int16_t at[2]; /* offsets in a unit, the same twice for one half, -1 for none */
        int16_t in_nibbles;
    } halves;
    int16_t by_row;
} ggufx_type;

extern const ggufx_type ggufx_types[GGUFX_IDS];

#endif
