"""From a checkpoint to a model on the native step."""

from __future__ import annotations

from collections.abc import Callable

from outpace.models.checkpoint import Checkpoint
from outpace.models.native.decoder import NativeDecoder
from outpace.models.native.formats import NativeOptions, dtype_name
from outpace.models.native.packed_file import packed_weights
from outpace.models.native.weights import check_stored, main_format, plan_matrices
from outpace.models.threads import in_own_thread


def load_native(
    checkpoint: Checkpoint,
    dtype: str,
    options: NativeOptions,
    *,
    num_logits: int,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> NativeDecoder:
    """The model with its weights mapped from their packed file, which is written on first use.

    dtype: one of `support.DTYPES`; see `load_model`. Raises OptionError for a packed dtype that the
    checkpoint is not stored in, and for options that do not go with the weights.
    """
    config = checkpoint.config
    check_stored(checkpoint.stored_dtype, dtype, str(checkpoint.path))
    matrices = plan_matrices(config, checkpoint, dtype)
    options.rounding(main_format(matrices))  # refused, if so, before anything is packed

    def load() -> NativeDecoder:
        label = dtype_name(main_format(matrices))
        packed = packed_weights(checkpoint, matrices, label, progress)
        return NativeDecoder(
            config,
            checkpoint,
            matrices,
            packed,
            num_logits=num_logits,
            options=options,
            threads=threads,
        )

    return in_own_thread(load)
