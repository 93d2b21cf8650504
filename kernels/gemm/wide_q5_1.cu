// walla: targets sm_90a
// WGMMA GEMM for Q5_1 matrices: see gemm_sm90.cuh.
#include "gemm/gemm_sm90.cuh"

WIDES_BUT_PAIRED(Q5_1, q5_1)
WIDE(Q5_1, q5_1, _split, 32, IN_MEMORY, WIDE_TILES, 1)
