// Marks functions that device code may call too. For host compilers it is nothing.
#pragma once

#if defined(__CUDACC__) || defined(__HIPCC__)
#define DSV4_HOST_DEVICE __host__ __device__
#else
#define DSV4_HOST_DEVICE
#endif
