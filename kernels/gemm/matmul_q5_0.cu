// matmul for Q5_0 matrices: see gemm_sm80.cuh. One file per type, so that a model loads only the
// code of its types.
#include "gemm/gemm_sm80.cuh"

MATMULS(Q5_0, q5_0)
