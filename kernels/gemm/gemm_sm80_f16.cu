// mma GEMM for F16 matrices: see gemm_sm80.cuh. One file per type, so that a model loads only the
// code of its types.
#include "gemm/gemm_sm80.cuh"

GEMM_SM80(gemm_sm80_f16_16, F16, 2)
GEMM_SM80(gemm_sm80_f16_32, F16, 4)
