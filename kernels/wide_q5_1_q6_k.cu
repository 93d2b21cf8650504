// walla: targets sm_90a
// Products by clusters of warpgroups with Q5_1 and Q6K matrices, of either or of both in one launch: see wide.cuh.
#include "wide.cuh"

WIDE_PAIRS(Q5_1, q5_1, Q6K, q6_k)
