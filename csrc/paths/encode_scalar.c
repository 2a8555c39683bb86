/* The encoders of every CPU: plain C. */
#include "../lanes/encode_scalar.h"

#define PATH scalar
#include "encode_template.h"
