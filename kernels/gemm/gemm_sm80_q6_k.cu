// mma GEMM for Q6_K matrices: see gemm_sm80.cuh. One file per type, so that a model loads only the
// code of its types.
#include "gemm/gemm_sm80.cuh"

GEMM_SM80(gemm_sm80_q6_k_16, Q6K, 2)
GEMM_SM80(gemm_sm80_q6_k_32, Q6K, 4)
