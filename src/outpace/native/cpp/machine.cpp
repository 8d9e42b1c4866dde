// What this processor and system can run.
#include <cstdio>
#include <cstring>

#include "plan.hpp"
#include "step.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace outpace {
namespace {

struct Path {
  const char *name;
  const Kernels *kernels;
  bool (*usable)();
};

[[maybe_unused]] bool runs_portable() { return true; }

#if defined(__x86_64__)

struct Leaf {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Leaf cpuid(unsigned leaf, unsigned subleaf) {
  Leaf found;
  __get_cpuid_count(leaf, subleaf, &found.a, &found.b, &found.c, &found.d);
  return found;
}

bool has(unsigned word, unsigned bits) { return (word & bits) == bits; }

constexpr unsigned bit(int i) { return 1u << i; }

// Whether the system saves and restores these parts of the processor's state.
bool system_saves(unsigned parts) {
  if (!has(cpuid(1, 0).c, bit(27))) return false;
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return has(low, parts);
}

constexpr unsigned YMM = bit(1) | bit(2), ZMM = bit(5) | bit(6) | bit(7), TILES = bit(17) | bit(18);

[[maybe_unused]] bool runs_avx2() {
  const unsigned fma_and_f16c = bit(12) | bit(28) | bit(29);
  return system_saves(YMM) && has(cpuid(1, 0).c, fma_and_f16c) && has(cpuid(7, 0).b, bit(5));
}

[[maybe_unused]] bool runs_avx512() {
  const unsigned f_dq_bw_vl = bit(16) | bit(17) | bit(30) | bit(31);
  return runs_avx2() && system_saves(ZMM) && has(cpuid(7, 0).b, f_dq_bw_vl);
}

[[maybe_unused]] bool runs_avx512bf16() {
  const unsigned vbmi_and_vnni = bit(1) | bit(11);
  return runs_avx512() && has(cpuid(7, 0).c, vbmi_and_vnni) && has(cpuid(7, 1).a, bit(5));
}

// Linux hands out the tiles' large state on request only; it may refuse.
bool may_use_tiles() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
  return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
  return false;
#endif
}

[[maybe_unused]] bool runs_amx() {
  const unsigned bf16_tile_int8 = bit(22) | bit(24) | bit(25);
  return runs_avx512bf16() && has(cpuid(7, 0).d, bf16_tile_int8) && system_saves(TILES) &&
         may_use_tiles();
}

#endif

#define OUTPACE_ENTRY(path) {#path, &path::kernels, runs_##path},
constexpr Path PATHS[] = {OUTPACE_PATHS(OUTPACE_ENTRY)};
#undef OUTPACE_ENTRY

// Comma-separated names, written once.
struct Names {
  char text[64] = "";

  explicit Names(bool usable_only) {
    for (const Path &path : PATHS) {
      if (usable_only && !path.usable()) continue;
      const size_t used = std::strlen(text);
      std::snprintf(text + used, sizeof text - used, "%s%s", used ? "," : "", path.name);
    }
  }
};

}  // namespace

const Kernels *find_path(const char *name, char *error) {
  for (const Path &path : PATHS) {
    if (!name || std::strcmp(path.name, name) != 0) continue;
    if (path.usable()) return path.kernels;
    fail(error, "this machine does not run the path '%s'; it runs %s", name, op_paths_usable());
    return nullptr;
  }
  fail(error, "there is no path '%s'; built in are %s", name ? name : "", op_paths_built());
  return nullptr;
}

}  // namespace outpace

const char *op_paths_built() {
  static const outpace::Names names(false);
  return names.text;
}

const char *op_paths_usable() {
  static const outpace::Names names(true);
  return names.text;
}

int32_t op_abi_version() { return OP_ABI_VERSION; }
