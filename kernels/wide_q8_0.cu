// walla: targets sm_90a
// WGMMA GEMM for Q8_0 matrices: see wide.cuh.
#include "wide.cuh"

WIDES(Q8_0, q8_0)
