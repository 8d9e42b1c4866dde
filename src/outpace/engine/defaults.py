"""Sampling parameters that a model's makers advise, for requests that bring none of their own.

They come from generation_config.json (names of `transformers`) or from the `general.sampling.*`
metadata of a GGUF file (names of llama.cpp).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from outpace.errors import ModelError, OptionError
from outpace.params import SamplingParams

logger = logging.getLogger(__name__)

GENERATION_CONFIGS = ("auto", "none")

# As stored -> as we call it.
_NAMES = {name: name for name in ("temperature", "top_k", "top_p", "min_p", "typical_p")} | {
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
    "stop_strings": "stop",
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
# What would change the text and is not computed here, with the values that ask for nothing. Null
# asks for nothing anywhere.
_NOT_APPLIED: dict[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "penalty_alpha": (0,),
    "dola_layers": (),
    "guidance_scale": (1,),
    "top_h": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "bad_words_ids": ([],),
    "force_words_ids": ([],),
    "constraints": ([],),
    "sequence_bias": ([], {}),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "forced_decoder_ids": ([],),
    "exponential_decay_length_penalty": (),
    "remove_invalid_values": (False,),
    "watermarking_config": (),
    "general.sampling.sequence": ("",),
    "general.sampling.xtc_probability": (0,),
    # The window of the repetition penalty: ours is everything so far, which llama.cpp calls -1.
    "general.sampling.penalty_last_n": (-1,),
    "general.sampling.mirostat": (0,),
}


def default_sampling_params(stored: Mapping[str, Any], model: str) -> SamplingParams:
    """Sampling parameters from what a model has stored; what it says nothing of keeps our default.

    `do_sample: false` means greedy. Fields that would change the text and are not computed here are
    named in a warning: nobody asked for them in so many words, so they are no error.
    Raises ModelError for values that cannot be sampling parameters.
    """
    given = {name: value for name, value in stored.items() if value is not None}
    left_out = [
        f"{name}={given[name]!r:.40}"
        for name, neutral in _NOT_APPLIED.items()
        if name in given and given[name] not in neutral
    ]
    if left_out:
        logger.warning(
            "%s: its generation config asks for what is not computed here and left out: %s",
            model,
            ", ".join(left_out),
        )
    values = {_NAMES[name]: value for name, value in given.items() if name in _NAMES}
    if given.get("do_sample") is False:
        values["temperature"] = 0.0
    try:
        return SamplingParams(**values)
    except OptionError as error:
        raise ModelError(
            f"{model}: its generation config cannot be used: {error}; correct it, or set "
            "generation_config='none'"
        ) from None


def check_generation_config(option: object) -> None:
    """Raise OptionError unless it is a value of `LLM`'s option generation_config."""
    if option not in GENERATION_CONFIGS:
        raise OptionError(
            f"generation_config must be {' or '.join(map(repr, GENERATION_CONFIGS))}, "
            f"got {option!r}"
        )
