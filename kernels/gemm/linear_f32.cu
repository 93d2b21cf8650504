// linear for F32 matrices: see linear.cuh. One file per type, so that a model loads only the code
// of its types.
#include "gemm/linear.cuh"

LINEARS(F32, f32)
