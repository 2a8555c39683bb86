/* The paths, best first. Adding an instruction set: one row here, one file in paths/, one in lanes/. */
#include "cpu.h"
#include "path.h"

#if GGUFX_X86
#define X86_PATH(p) (&(p))
#else
#define X86_PATH(p) NULL
#endif
#if GGUFX_NEON
#define NEON_PATH(p) (&(p))
#else
#define NEON_PATH(p) NULL
#endif

static int always(void) { return 1; }

static const struct {
    const char *name, *lacking, *absent;
    const ggufx_path *path; /* NULL where this build is for another architecture */
    int (*runs)(void);
} paths[] = {
    {"avx512", "this CPU or system lacks AVX-512 (F, BW, DQ, VL)", "built for another architecture than x86-64",
     X86_PATH(ggufx_path_avx512), ggufx_cpu_has_avx512},
    {"avx2", "this CPU or system lacks AVX2, BMI2 or F16C", "built for another architecture than x86-64",
     X86_PATH(ggufx_path_avx2), ggufx_cpu_has_avx2},
    {"neon", "", "built for another architecture than aarch64", NEON_PATH(ggufx_path_neon), always},
    {"scalar", "", "", &ggufx_path_scalar, always},
};
enum { PATHS = sizeof paths / sizeof *paths };

const char *ggufx_path_name(int i) { return i < PATHS ? paths[i].name : NULL; }

const char *ggufx_path_problem(int i) {
    if (!paths[i].path) return paths[i].absent;
    return paths[i].runs() ? NULL : paths[i].lacking;
}

const ggufx_path *ggufx_path_at(int i) { return paths[i].path; }

int ggufx_decodes(int type) {
    return type >= 0 && type < GGUFX_MAX_ID && ggufx_path_scalar.decode[type][0][GGUFX_F32] != NULL;
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
