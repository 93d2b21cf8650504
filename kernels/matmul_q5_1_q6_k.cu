// Products of few rows with Q5_1 and Q6K matrices, of either or of both in one launch: see few.cuh.
#include "few.cuh"

FEW_PAIR(Q5_1, q5_1, Q6K, q6_k)
