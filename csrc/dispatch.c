/* The paths, best first. Adding an instruction set: one row here, three files in paths/, two in lanes/. */
#include <stdatomic.h>

#include "cpu.h"
#include "encode.h"
#include "path.h"

#if GGUFX_X86
#define X86(p) (&ggufx_path_##p), (&ggufx_dots_##p), (&ggufx_encoders_##p), ggufx_cpu_has_##p
#else
#define X86(p) NULL, NULL, NULL, NULL
#endif
#if GGUFX_NEON
#define NEON(p) (&ggufx_path_##p), (&ggufx_dots_##p), (&ggufx_encoders_##p), always
#else
#define NEON(p) NULL, NULL, NULL, NULL
#endif

static int always(void) { return 1; }

static const struct {
    const char *name, *lacking, *absent;
    const ggufx_path *path; /* NULL where this build is for another architecture */
    const ggufx_dots *dots;
    const ggufx_encoders *encoders;
    int (*runs)(void);
} paths[] = {
    {"avx512", "this CPU or system lacks AVX-512 (F, BW, DQ, VL) or what avx2 needs",
     "built for another architecture than x86-64", X86(avx512)},
    {"avx2", "this CPU or system lacks AVX2, BMI1, BMI2, F16C or FMA", "built for another architecture than x86-64",
     X86(avx2)},
    {"neon", "", "built for another architecture than aarch64", NEON(neon)},
    {"scalar", "", "", &ggufx_path_scalar, &ggufx_dots_scalar, &ggufx_encoders_scalar, always},
};
enum { PATHS = sizeof paths / sizeof *paths };

const char *ggufx_path_name(int i) { return i < PATHS ? paths[i].name : NULL; }

const char *ggufx_path_problem(int i) {
    if (!paths[i].path) return paths[i].absent;
    return paths[i].runs() ? NULL : paths[i].lacking;
}

const ggufx_path *ggufx_path_at(int i) { return paths[i].path; }

const ggufx_dots *ggufx_dots_at(int i) { return paths[i].dots; }

#if GGUFX_X86
/* Asked once: cpuid takes tens of microseconds where a hypervisor answers it. */
static int has_vnni(void) {
    enum { UNKNOWN, NO, YES };
    static atomic_int known = UNKNOWN;
    int answer = atomic_load_explicit(&known, memory_order_relaxed);
    if (answer == UNKNOWN) {
        answer = ggufx_cpu_has_vnni() ? YES : NO;
        atomic_store_explicit(&known, answer, memory_order_relaxed);
    }
    return answer == YES;
}
#endif

const ggufx_code_dots *ggufx_code_dots_at(int i) {
#if GGUFX_X86
    if (paths[i].path == &ggufx_path_avx512 && has_vnni()) return &ggufx_code_dots_vnni;
    if (paths[i].path != &ggufx_path_scalar) return &ggufx_code_dots_avx2;
#elif GGUFX_NEON
#if GGUFX_DOTPROD_BUILT
    if (paths[i].path == &ggufx_path_neon && ggufx_cpu_has_dotprod()) return &ggufx_code_dots_dotprod;
#endif
    if (paths[i].path == &ggufx_path_neon) return &ggufx_code_dots_neon;
#endif
    return NULL;
}

const ggufx_encoders *ggufx_encoders_at(int i) { return paths[i].encoders; }

int ggufx_decodes(int type) {
    return type >= 0 && type < GGUFX_IDS && ggufx_path_scalar.decode[type][0][GGUFX_F32] != NULL;
}

const char *ggufx_compiler(void) {
#if defined(__clang__)
    return "clang " __clang_version__;
#elif defined(__GNUC__)
    return "gcc " __VERSION__;
#else
    return "unknown";
#endif
}
