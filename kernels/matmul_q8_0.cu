// matmul for Q8_0 matrices: see matmul.cuh. One file a type, so that a model loads the code of its own types alone.
#include "matmul.cuh"

MATMULS(Q8_0, q8_0)
