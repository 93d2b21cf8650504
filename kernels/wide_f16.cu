// walla: targets sm_90a
// WGMMA GEMM for F16 matrices: see wide.cuh.
#include "wide.cuh"

WIDES(F16, f16)
