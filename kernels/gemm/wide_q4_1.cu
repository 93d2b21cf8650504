// walla: targets sm_90a
// WGMMA GEMM for Q4_1 matrices: see gemm_sm90.cuh.
#include "gemm/gemm_sm90.cuh"

WIDES_BUT_PAIRED(Q4_1, q4_1)
WIDE(Q4_1, q4_1, _split, 32, IN_MEMORY, WIDE_TILES, 1)
