// walla: targets sm_90a
// WGMMA GEMM for Q5_0 matrices: see wide.cuh.
#include "wide.cuh"

WIDES(Q5_0, q5_0)
WIDE(Q5_0, q5_0, _split, 32, IN_MEMORY, WIDE_TILES, 1)
