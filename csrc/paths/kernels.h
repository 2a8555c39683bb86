/* The body of every type, in the words of the lanes that came before. */
#include "../lanes/emit.h"

/* Before a kernel's loop over its n parts: unrolled where the including file says that it pays. */
#ifdef PARTS_UNROLLED
#define PARTS(n) UNROLL(n)
#else
#define PARTS(n)
#endif

/* Adding a type: its kernel here, and its row in types.def. */
#include "../kernels/iq1_m.h"
#include "../kernels/iq1_s.h"
#include "../kernels/iq2_s.h"
#include "../kernels/iq2_xs.h"
#include "../kernels/iq2_xxs.h"
#include "../kernels/iq3_s.h"
#include "../kernels/iq3_xxs.h"
#include "../kernels/iq4_nl.h"
#include "../kernels/iq4_xs.h"
#include "../kernels/mxfp4.h"
#include "../kernels/nvfp4.h"
#include "../kernels/plain.h"
#include "../kernels/q1_0.h"
#include "../kernels/q2_0.h"
#include "../kernels/q2_k.h"
#include "../kernels/q3_k.h"
#include "../kernels/q4_0.h"
#include "../kernels/q4_1.h"
#include "../kernels/q4_k.h"
#include "../kernels/q5_0.h"
#include "../kernels/q5_1.h"
#include "../kernels/q5_k.h"
#include "../kernels/q6_k.h"
#include "../kernels/q8_0.h"
#include "../kernels/q8_1.h"
#include "../kernels/q8_k.h"
#include "../kernels/tq1_0.h"
#include "../kernels/tq2_0.h"
