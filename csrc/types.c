#include "types.h"

#define HALF(at) {{at, at}, 0}
#define HALVES(at1, at2) {{at1, at2}, 0}
#define HALF_IN_NIBBLES(at) {{at, at}, 1}
#define NO_HALF {{-1, -1}, 0}
enum { BY_BLOCK, BY_ROW };

const ggufx_type ggufx_types[GGUFX_IDS] = {
#define GGUFX_TYPE(name, id, values, bytes, encoded, halves, by) [id] = {values, bytes, halves, by},
#include "types.def"
#undef GGUFX_TYPE
};
