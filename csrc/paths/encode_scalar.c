/* The encoders of every CPU: plain C. */
#include "../lanes/wide_scalar.h"

#define PATH scalar
#include "encode_template.h"
