"""What a plan is made for."""

from __future__ import annotations

from dataclasses import dataclass

from outpace.errors import OptionError
from outpace.measure.plan.formats import DEFAULT_GROUP_SIZE, DTYPES, WHOLE

KV_DTYPES = ("auto", *WHOLE)
DEFAULT_RESERVE_PERCENT = 10.0
DEFAULT_MAX_BATCHED_TOKENS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """dtype, draft_dtype: what weights are held in, see `formats.choose`; draft_dtype None is the
        target's where that is a plain one, else "auto".
    kv_dtype: of the caches of target and draft model; "auto" is float32 with float32 weights, else
        two bytes.
    group_size: of dtype "awq" and "gptq". batch: sequences. context: tokens of each; None: what an
        engine takes where nothing is said.
    tensor_parallel: devices that share one target; draft_tensor_parallel: that share one draft, 1
        (every device has a whole draft) or tensor_parallel.
    num_speculative_tokens: draft tokens of a step, of a tree all nodes; None: the method's default.
    max_num_batched_tokens: tokens of the largest pass. reserve_percent: of a device's memory that
        the plan leaves alone.
    Raises OptionError, naming the option, for a value that cannot be.
    """

    dtype: str = "auto"
    draft_dtype: str | None = None
    kv_dtype: str = "auto"
    group_size: int = DEFAULT_GROUP_SIZE
    batch: int = 1
    context: int | None = None
    tensor_parallel: int = 1
    draft_tensor_parallel: int = 1
    num_speculative_tokens: int | None = None
    max_num_batched_tokens: int = DEFAULT_MAX_BATCHED_TOKENS
    reserve_percent: float = DEFAULT_RESERVE_PERCENT

    def __post_init__(self) -> None:
        for name in (
            "batch",
            "context",
            "tensor_parallel",
            "draft_tensor_parallel",
            "max_num_batched_tokens",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"{name} must be at least 1, got {value}")
        if self.num_speculative_tokens is not None and self.num_speculative_tokens < 0:
            raise OptionError(
                f"num_speculative_tokens must be at least 0, got {self.num_speculative_tokens}"
            )
        if not 0 <= self.reserve_percent < 100:
            raise OptionError(
                f"the reserve must be from 0 to below 100 percent, got {self.reserve_percent}"
            )
        self._check_choices()
        if self.draft_tensor_parallel not in (1, self.tensor_parallel):
            raise OptionError(
                f"draft_tensor_parallel must be 1 or tensor_parallel ({self.tensor_parallel}), got "
                f"{self.draft_tensor_parallel}"
            )

    def _check_choices(self) -> None:
        choices = {"dtype": DTYPES, "draft_dtype": (*DTYPES, None), "kv_dtype": KV_DTYPES}
        for name, allowed in choices.items():
            if (value := getattr(self, name)) not in allowed:
                known = ", ".join(filter(None, allowed))
                raise OptionError(f"{name} must be one of {known}, got {value!r}")
        if self.group_size != -1 and self.group_size < 1:
            raise OptionError(
                f"group_size must be positive, or -1 for whole rows, got {self.group_size}"
            )

    @property
    def dtype_of_draft(self) -> str:
        """The draft's dtype."""
        if self.draft_dtype is not None:
            return self.draft_dtype
        return self.dtype if self.dtype in WHOLE else "auto"

    def kv_item_bytes(self, dtype: str, stored_dtype: str) -> int:
        """Bytes of one number in a cache of a model with these weights. stored_dtype: what "auto"
        is of a `config.json`."""
        if self.kv_dtype != "auto":
            return WHOLE[self.kv_dtype]
        return 4 if "float32" in (dtype, stored_dtype if dtype == "auto" else dtype) else 2
