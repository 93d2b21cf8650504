// linear for Q6K matrices: see linear.cuh. One file a type, so that a model loads the code of its own types alone.
#include "linear.cuh"

LINEARS(Q6K, q6_k)
