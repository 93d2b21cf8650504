// matmul for Q5_0 matrices: see matmul.cuh. One file a type, so that a model loads the code of its own types alone.
#include "matmul.cuh"

MATMULS(Q5_0, q5_0)
