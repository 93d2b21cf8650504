// walla: targets sm_90a
// matmul by warpgroups for Q5_0 matrices: see wide.cuh.
#include "wide.cuh"

WIDES(Q5_0, q5_0)
