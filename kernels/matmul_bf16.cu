// matmul for BF16 matrices: see matmul.cuh. One file a type, so that a model loads the code of its own types alone.
#include "matmul.cuh"

MATMULS(BF16, bf16)
