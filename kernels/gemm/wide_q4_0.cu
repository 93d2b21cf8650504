// walla: targets sm_90a
// WGMMA GEMM for Q4_0 matrices: see gemm_sm90.cuh.
#include "gemm/gemm_sm90.cuh"

WIDES(Q4_0, q4_0)
WIDE(Q4_0, q4_0, _split, 32, IN_MEMORY, WIDE_TILES, 1)
