// matmul for F16 matrices: see matmul.cuh. One file per type, so that a model loads only the code
// of its types.
#include "matmul.cuh"

MATMULS(F16, f16)
