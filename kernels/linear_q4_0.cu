// linear for Q4_0 matrices: see linear.cuh. One file a type, so that a model loads the code of its own types alone.
#include "linear.cuh"

LINEARS(Q4_0, q4_0)
