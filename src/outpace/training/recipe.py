"""A whole training run: prompts, answers, features, training, a draft with its card.

Every stage leaves on disk what it has done so far; a run that was interrupted at any moment goes on
when it is called again with the same plan, and ends with the same draft.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as List
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from outpace.errors import OptionError
from outpace.heads.target_parts import TargetParts
from outpace.training.answers import (
    Answer,
    AnswerOptions,
    SamplingMix,
    generate_answers,
    read_answers,
)
from outpace.training.batches import held_out_indices
from outpace.training.capture import capture_features, held_out_share
from outpace.training.evaluation import evaluate
from outpace.training.jsonl import read_rows
from outpace.training.loop import train
from outpace.training.options import Evaluation, Progress, TrainingOptions, TrainingResult
from outpace.training.overlap import Benchmarks, without_contaminated
from outpace.training.prompts import JSON_SUFFIXES, Prompt, read_prompts, select_prompts
from outpace.training.run_directory import RunDirectory, file_identity, write_json
from outpace.training.self_prompts import SelfPromptOptions, self_prompts
from outpace.training.store import FeatureStore, Header
from outpace.training.trainees import DraftSettings, captured_layers, make_trainee, proposed_size

if TYPE_CHECKING:
    from outpace.models.load import LoadedModel
    from outpace.training.generator import Generator
    from outpace.training.trainee import Trainee

CAPTURE_ROWS = 8
BY_SOURCE = "held out: "
GREEDY = SamplingMix(((0.0, 1.0),))
MOST_EVALUATED = 256
"""Held-out sequences that the final table is made of."""


@dataclass(frozen=True, kw_only=True)
class DataPlan:
    """What a draft is trained on.

    prompts, answers: files; answers are taken as they are. self_prompts: how many the target is to
    invent. num_prompts, per_source, limits: see `prompts.select_prompts`. benchmarks: files whose
    questions no prompt may share; drop_contaminated leaves such prompts out instead of refusing
    them. general: prompts (answered greedily) or answers on which a draft that goes on from another
    is looked at besides. max_tokens: of an answer. held_out: share of the prompts; None: about 3 %.
    """

    prompts: tuple[Path, ...] = ()
    answers: tuple[Path, ...] = ()
    self_prompts: int = 0
    num_prompts: int | None = None
    per_source: int | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    benchmarks: tuple[Path, ...] = ()
    drop_contaminated: bool = False
    general: tuple[Path, ...] = ()
    sampling: SamplingMix = field(default_factory=SamplingMix)
    max_tokens: int = 256
    max_prompt_tokens: int = 768
    held_out: float | None = None

    def __post_init__(self) -> None:
        if not (self.prompts or self.answers or self.self_prompts):
            raise OptionError(
                "there is nothing to train on; give --prompts, --answers or --self-prompts"
            )
        if self.held_out is not None and not 0 <= self.held_out < 1:
            raise OptionError(
                f"the held-out share is at least 0 and below 1, got {self.held_out:g}"
            )

    def identity(self) -> dict[str, Any]:
        """JSON values that the data depends on."""
        values = asdict(self)
        for name in ("prompts", "answers", "benchmarks", "general"):
            values[name] = [file_identity(path) for path in getattr(self, name)]
        return values


class Observer(Protocol):
    """Who is told how a run proceeds."""

    def counted(self, stage: str, done: int, total: int, detail: str = "") -> None:
        """`done` of `total` things of a stage are there."""

    def trained(self, progress: Progress) -> None: ...

    def note(self, text: str) -> None:
        """Something worth knowing, in one sentence."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A run.

    engine: opens what generates answers, for sequences of up to so many tokens; called only where
    there are some to generate. keep_data: leave answers, features and checkpoints where they are
    once the draft is written.
    """

    settings: DraftSettings
    data: DataPlan
    training: TrainingOptions
    target: LoadedModel
    out: Path
    engine: Callable[[int], AbstractContextManager[Generator]]
    observer: Observer
    keep_data: bool = False

    def run(self, finish: Callable[[Path, Outcome], object]) -> Outcome:
        """Do what is left to do. finish: writes what else belongs beside the draft's own files.

        Raises OptionError or ModelError for what cannot be honoured, as early as it is known.
        """
        return _Run(self).run(finish)


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    answers: all that were used. dropped: a report of contaminated prompts, or "". before, after:
    evaluations by what was looked at: "held out", "general", and "held out: SOURCE"; `before` is
    empty unless the draft went on from another.
    """

    result: TrainingResult
    answers: List[Answer]
    num_sequences: int
    num_held_out: int
    dropped: str
    capture: tuple[int, ...]
    before: Mapping[str, Evaluation]
    after: Mapping[str, Evaluation]
    num_parameters: int


class _Run:
    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._data, self._observer = recipe.data, recipe.observer
        self._target, self._settings = recipe.target, recipe.settings
        self._parts = TargetParts(recipe.target)
        self._settings.check(self._parts)
        self._directory = RunDirectory(recipe.out, self._identity())
        self._dropped = ""
        self._benchmarks = Benchmarks(self._data.benchmarks)
        # Longer than the target itself can read, nothing is.
        wanted = self._data.max_prompt_tokens + self._data.max_tokens
        self._context = min(wanted, self._target.max_len)
        if self._context < 8:
            raise OptionError(
                f"prompts and answers of {self._context} tokens together teach nothing; allow more"
            )

    def _identity(self) -> dict[str, Any]:
        settings, options = asdict(self._settings), self._recipe.training.as_dict()
        if self._settings.init is not None:
            settings["init"] = file_identity(self._settings.init / "model.safetensors")
        for habit in ("threads", "checkpoint_minutes"):
            del options[habit]
        target = self._target
        model = {"name": target.name, "fingerprint": target.fingerprint, "dtype": target.dtype}
        model["runs_on"] = target.model_impl
        return {"draft": settings, "data": self._data.identity(), **options, "target": model}

    def run(self, finish: Callable[[Path, Outcome], object]) -> Outcome:
        directory, observer = self._directory, self._observer
        prompts, given = self._prompts(), self._given_answers()
        if directory.is_resumed:
            observer.note(f"going on with the run in {directory.path}")
        directory.begin()
        size = proposed_size(self._settings, self._parts)
        if size is not None:
            observer.note(size.described(self._parts.vocab_size))
        answers = [*given, *self._generated(prompts)]
        store, general = self._captured(answers), self._captured_general()
        trainee = make_trainee(self._settings, self._parts, store)
        before = self._before(trainee, store, general)
        result = train(trainee, store, self._recipe.training, directory.training, observer.trained)
        outcome = Outcome(
            result,
            answers,
            len(store),
            sum(store.is_held_out(i) for i in range(len(store))),
            self._dropped,
            store.capture,
            before,
            self._evaluated(trainee, store, general),
            sum(p.numel() for p in trainee.module.parameters() if p.requires_grad),
        )
        draft = directory.new_draft()
        trainee.save(draft)
        finish(draft, outcome)
        directory.publish(draft, keep=self._recipe.keep_data)
        return outcome

    def _prompts(self) -> list[Prompt]:
        """Those of the files, chosen and checked."""
        data = self._data
        if not data.prompts:
            return []
        prompts = select_prompts(
            read_prompts(data.prompts),
            seed=self._settings.seed,
            most=data.num_prompts,
            most_per_source=data.per_source,
            limits=data.limits,
        )
        return self._uncontaminated(prompts)

    def _given_answers(self) -> list[Answer]:
        answers = [
            answer
            for path in self._data.answers
            for answer in read_answers(path, self._target.tokenizer)
        ]
        return self._uncontaminated(answers)

    def _uncontaminated(self, found: list[Any], *, drop: bool = False) -> list[Any]:
        drop = drop or self._data.drop_contaminated
        kept, report = without_contaminated(found, self._benchmarks, drop=drop)
        if report:
            self._observer.note(f"left out: {report}")
            self._dropped = "; ".join(filter(None, (self._dropped, report)))
        return kept

    def _generated(self, prompts: list[Prompt]) -> list[Answer]:
        data, directory, tokenizer = self._data, self._directory, self._target.tokenizer
        if not (prompts or data.self_prompts):
            return []
        with self._recipe.engine(self._context) as generator:
            if data.self_prompts:
                options = SelfPromptOptions(
                    target=self._target.fingerprint, seed=self._settings.seed
                )
                invented = self_prompts(
                    data.self_prompts,
                    generator,
                    tokenizer,
                    directory.prompts,
                    options,
                    lambda done, total: self._observer.counted("prompts", done, total),
                )
                # Nobody chose these, so that there is nobody to be asked about them.
                prompts = [*prompts, *self._uncontaminated(invented, drop=True)]
            return generate_answers(
                prompts,
                generator,
                tokenizer,
                directory.answers,
                self._answer_options(data.sampling),
                self._count_answers,
            )

    def _answer_options(self, mix: SamplingMix) -> AnswerOptions:
        room = max(self._context - self._data.max_tokens, self._context // 2)
        return AnswerOptions(
            target=self._target.fingerprint,
            mix=mix,
            max_tokens=self._data.max_tokens,
            max_prompt_tokens=min(self._data.max_prompt_tokens, room),
            seed=self._settings.seed,
        )

    def _count_answers(self, done: int, total: int, tokens: int) -> None:
        self._observer.counted("answers", done, total, f"{tokens:,} tokens")

    def _captured(self, answers: list[Answer]) -> FeatureStore:
        share = self._data.held_out
        share = held_out_share(len(answers)) if share is None else share
        store = self._capture("features", answers, self._directory.features, share)
        if not any(not store.is_held_out(i) for i in range(len(store))):
            raise OptionError(
                f"nothing is left to train on: {len(store)} of {len(answers)} answers fit in "
                f"{self._context} tokens with their prompts, and all of them are held out"
            )
        return store

    def _captured_general(self) -> FeatureStore | None:
        """Sequences to look at only: all of them are held out."""
        files = self._data.general
        if not files:
            return None
        tokenizer = self._target.tokenizer
        given = [path for path in files if holds_answers(path)]
        answers = [answer for path in given for answer in read_answers(path, tokenizer)]
        if asked := [path for path in files if path not in given]:
            with self._recipe.engine(self._context) as generator:
                answers += generate_answers(
                    read_prompts(asked),
                    generator,
                    tokenizer,
                    self._directory.general_answers,
                    self._answer_options(GREEDY),
                    self._count_answers,
                )
        path = self._directory.general_features
        return self._capture("general features", answers, path, 1.0)

    def _capture(self, stage: str, answers: list[Answer], path: Path, share: float) -> FeatureStore:
        from outpace.runner import Runner

        target, layers = self._target, captured_layers(self._settings, self._parts)
        header = Header(
            layers, self._parts.hidden_size, self._parts.vocab_size, self._parts.fingerprint
        )
        store = FeatureStore.open_to_write(path, header)
        cache = target.new_cache(num_rows=CAPTURE_ROWS, num_tokens=self._context)
        capture_features(
            answers,
            Runner(target.decoder, cache),
            store,
            held_out_share=share,
            max_tokens=self._context,
            progress=lambda done, total: self._observer.counted(stage, done, total, "tokens"),
        )
        return FeatureStore.open(path)

    def _before(
        self, trainee: Trainee, store: FeatureStore, general: FeatureStore | None
    ) -> dict[str, Evaluation]:
        """What the draft that this run goes on from is worth; looked at once."""
        if self._settings.init is None:
            return {}
        path = self._directory.before
        if not path.exists():
            if self._settings.draft_vocab_size is not None:  # it has another vocabulary by now
                unchanged = replace(self._settings, draft_vocab_size=None)
                trainee = make_trainee(unchanged, self._parts, store)
            found = self._evaluated(trainee, store, general)
            write_json(path, {name: asdict(each) for name, each in found.items()})
        values = json.loads(path.read_text(encoding="utf-8"))
        return {name: evaluation_of(each) for name, each in values.items()}

    def _evaluated(
        self, trainee: Trainee, store: FeatureStore, general: FeatureStore | None
    ) -> dict[str, Evaluation]:
        num_tokens = self._recipe.training.evaluated_tokens
        found: dict[str, Evaluation] = {}
        looked_at = list(_looked_at(store, general))
        for name, each, indices in looked_at:
            found[name] = evaluate(trainee, each, indices, num_tokens)
            self._observer.counted("evaluation", len(found), len(looked_at))
        return found


def _looked_at(
    store: FeatureStore, general: FeatureStore | None
) -> Iterator[tuple[str, FeatureStore, list[int]]]:
    """(what it is called, where it is, which sequences), in the order of the table."""
    held_out = held_out_indices(store, MOST_EVALUATED)
    if held_out:
        yield "held out", store, held_out
    if general is not None and len(general):
        yield "general", general, held_out_indices(general, MOST_EVALUATED)
    sources = sorted({store.source(i) for i in held_out})
    if len(sources) > 1:
        for source in sources:
            yield f"{BY_SOURCE}{source}", store, [i for i in held_out if store.source(i) == source]


def holds_answers(path: Path) -> bool:
    """Whether the first object of JSON lines is a prompt with its answer. Raises OptionError for a
    file that cannot be read."""
    if path.suffix not in JSON_SUFFIXES:
        return False
    row: Mapping[str, Any] = next((row for _, row in read_rows(path)), {})
    return "answer" in row or "answer_token_ids" in row


def evaluation_of(values: Mapping[str, Any]) -> Evaluation:
    """From its JSON."""
    return Evaluation(
        values["loss"], tuple(values["acceptance"]), tuple(values["tokens_per_cycle"])
    )
