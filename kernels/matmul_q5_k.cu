// matmul for Q5K matrices: see matmul.cuh. One file a type, so that a model loads the code of its own types alone.
#include "matmul.cuh"

MATMULS(Q5K, q5_k)
