// What the entry points of the C interface that run passes have in common.
#pragma once

#include <exception>

#include "plan.hpp"

namespace outpace {

// Marks a model as running for a scope.
class Turn {
 public:
  Turn(op_model &model, char *error) : model_(model) {
    taken_ = __atomic_exchange_n(&model.running, 1, __ATOMIC_ACQUIRE) == 0;
    if (!taken_) fail(error, "the model is in the middle of another pass");
  }
  ~Turn() {
    if (taken_) __atomic_store_n(&model_.running, 0, __ATOMIC_RELEASE);
  }
  Turn(const Turn &) = delete;
  Turn &operator=(const Turn &) = delete;
  bool taken() const { return taken_; }

 private:
  op_model &model_;
  bool taken_;
};

// -1 and a sentence in place of an exception.
template <class Body>
int32_t guarded(char *error, Body body) {
  try {
    return body() ? 0 : -1;
  } catch (const std::exception &failure) {
    fail(error, "the pass cannot run (%s)", failure.what());
    return -1;
  }
}

// One pass, checked and run. draws: [num_logit_rows] or NULL.
bool forward(op_model &model, op_cache *cache, const op_batch *batch, const Draw *draws, char *error);

}  // namespace outpace
