// walla: targets sm_90a
// WGMMA GEMM for Q6_K matrices: see gemm_sm90.cuh.
#include "gemm/gemm_sm90.cuh"

WIDES_BUT_PAIRED(Q6K, q6_k)
WIDE(Q6K, q6_k, _split, 32, IN_MEMORY, WIDE_TILES, 1)
