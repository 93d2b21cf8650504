// walla: targets sm_90a
// matmul by warpgroups for Q5_1 matrices: see wide.cuh.
#include "wide.cuh"

WIDES_BUT_CLUSTERS(Q5_1, q5_1)
