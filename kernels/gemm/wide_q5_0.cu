// walla: targets sm_90a
// WGMMA GEMM for Q5_0 matrices: see gemm_sm90.cuh.
#include "gemm/gemm_sm90.cuh"

WIDES(Q5_0, q5_0)
WIDE(Q5_0, q5_0, _split, 32, IN_MEMORY, WIDE_TILES, 1)
