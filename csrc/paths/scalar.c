/* The path of every CPU: plain C. */
#include "../lanes/scalar.h"

#define PATH scalar
#include "template.h"
