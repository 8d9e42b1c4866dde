// The instruction-set paths that are built in, best first: the X macro OUTPACE_PATHS, which the build
// may give.
#pragma once

#include "model.hpp"

#if !defined(OUTPACE_PATHS)
#if defined(__x86_64__)
#define OUTPACE_PATHS(X) X(amx) X(avx512bf16) X(avx512) X(avx2) X(portable)
#else
#define OUTPACE_PATHS(X) X(portable)
#endif
#endif

namespace outpace {

#define OUTPACE_DECLARE(path)   \
  namespace path {              \
  extern const Kernels kernels; \
  }
OUTPACE_PATHS(OUTPACE_DECLARE)
#undef OUTPACE_DECLARE

// The path of that name. NULL, and a sentence in `error`, where it is not built in or this machine
// does not run it.
const Kernels *find_path(const char *name, char *error);

}  // namespace outpace
