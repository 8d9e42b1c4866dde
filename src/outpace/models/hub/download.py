"""Models from the Hugging Face Hub, through its own client and into its own cache.

Of a repository only what a model needs is fetched: configuration, tokenizer and one set of weights,
never code. Weights come last, so that a cached snapshot with all its weights is a whole model.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outpace.errors import DownloadError
from outpace.models.hf.shards import BIN, BIN_INDEX, SAFETENSORS, SAFETENSORS_INDEX, read_weight_map
from outpace.models.hub.aliases import Progress

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

_REPO = r"(?P<repo>[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*)"
_NAMES = (
    re.compile(_REPO + r"(@(?P<revision>[^@:\s]+))?(:(?P<file>[^@:\s]+\.gguf))?"),
    re.compile(_REPO + r"/(?P<file>[^@:\s]+\.gguf)(@(?P<revision>[^@:\s]+))?"),
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_COMPANIONS = re.compile(
    r"(config|generation_config|adapter_config|special_tokens_map|added_tokens|chat_template)\.json"
    r"|tokenizer[\w.-]*\.(json|model)|vocab\.(json|txt)|merges\.txt"
    r"|chat_template\.jinja|additional_chat_templates/[\w.-]+\.jinja"
)
_LISTING_TIMEOUT_S = 10.0
_MAX_LISTED = 20


@dataclass(frozen=True, slots=True)
class HubName:
    """A model on the Hub. revision: branch, tag or commit. file: a GGUF file of the repository."""

    repo: str
    revision: str = "main"
    file: str | None = None

    def __str__(self) -> str:
        revision = "" if self.revision == "main" else f"@{self.revision}"
        return self.repo + revision + (f":{self.file}" if self.file else "")


class UnreachableError(DownloadError):
    """The Hub did not answer; what is cached may do."""


def parse(name: str) -> HubName | None:
    """The parts of `org/name[@revision][:file.gguf]` or `org/name/file.gguf[@revision]`.

    None for anything else.
    """
    for pattern in _NAMES:
        match = pattern.fullmatch(name) if len(name) < 1000 else None
        if match and not match["repo"].endswith(".gguf") and ".." not in name:
            return HubName(match["repo"], match["revision"] or "main", match["file"])
    return None


def fetch(name: HubName, progress: Progress | None = None) -> Path:
    """The directory or the GGUF file of a model on the Hub, fetched unless it is cached.

    progress(done_bytes, total_bytes) counts what has to be downloaded. The Hub is asked whether
    the revision has moved; where it does not answer, a complete cached model is used as it is.
    Raises DownloadError saying what is wrong: no such repository, revision or file, no access, no
    network, offline.
    """
    if _COMMIT.fullmatch(name.revision) and (path := _cached(name)):
        return path
    try:
        return _Download(name, progress).run()
    except UnreachableError:
        if path := _cached(name):
            return path
        raise


def fetch_config(name: HubName) -> Path:
    """`config.json` of a repository on the Hub, and nothing else of it; from the cache where the
    Hub does not answer. Raises DownloadError as `fetch`."""
    from huggingface_hub import hf_hub_download

    try:
        bar = _bar_class(None)
        with _without_retry_notes():
            path = hf_hub_download(name.repo, "config.json", revision=name.revision, tqdm_class=bar)
        return Path(path)
    # As in `_Download._explained`.
    except Exception as error:
        raise _explanation(error, name) from error


class _Download:
    """One model on its way: the listing of its repository, and the bytes counted so far."""

    def __init__(self, name: HubName, progress: Progress | None) -> None:
        self._name = name
        self._progress = progress
        self._failure: BaseException | None = None
        self._done = 0
        self._total = 0

    def run(self) -> Path:
        from huggingface_hub import HfApi

        name = self._name
        with self._explained():
            info = HfApi().model_info(
                name.repo,
                revision=name.revision,
                files_metadata=True,
                timeout=_LISTING_TIMEOUT_S,
            )
        sizes = _sizes(info)
        self._commit = str(info.sha)
        if name.file is None and "config.json" in sizes:
            return self._directory(sizes)
        file = _chosen_gguf(name, sizes)
        self._total = sizes[file]
        return self._get(file, name.revision)

    def _directory(self, sizes: Mapping[str, int]) -> Path:
        # Asked for by the name of the revision, which is what lets the cache know it by that name.
        directory = self._get("config.json", self._name.revision, quiet=True).parent
        weights = self._weight_files(sizes)
        companions = sorted(file for file in sizes if _COMPANIONS.fullmatch(file))
        wanted = [file for file in companions + weights if not (directory / file).exists()]
        self._total = sum(sizes[file] for file in wanted)
        for file in wanted:
            self._get(file, self._commit)
        return directory

    def _weight_files(self, sizes: Mapping[str, int]) -> list[str]:
        """The files of one set of weights; an index among them is fetched to read it."""
        for single, index in ((SAFETENSORS, SAFETENSORS_INDEX), (BIN, BIN_INDEX)):
            if single in sizes:
                return [single]
            if index in sizes:
                shards = sorted(
                    set(read_weight_map(self._get(index, self._commit, quiet=True)).values())
                )
                for shard in shards:
                    if shard not in sizes:
                        raise DownloadError(
                            f"{self._name}: {index} names {shard}, which is not there"
                        )
                return shards
        ggufs = [file for file in sizes if file.endswith(".gguf")]
        if ggufs:
            raise DownloadError(f"{self._name} holds GGUF files; {_choice(self._name, ggufs)}")
        kind = (
            "a LoRA adapter without" if "adapter_config.json" in sizes else "a repository without"
        )
        raise DownloadError(
            f"{self._name} is {kind} weights that can be read: there is no {SAFETENSORS}, {BIN}, "
            "index of either, or GGUF file"
        )

    def _get(self, file: str, revision: str, quiet: bool = False) -> Path:
        from huggingface_hub import hf_hub_download

        with self._explained():
            path = Path(
                hf_hub_download(
                    self._name.repo,
                    file,
                    revision=revision,
                    tqdm_class=_bar_class(None if quiet else self),
                )
            )
        depth = len(Path(file).parts)
        if path.parents[depth - 1].name != self._commit:
            raise DownloadError(f"{self._name} changed while it was being fetched; try again")
        return path

    def advance(self, num_bytes: float) -> None:
        """Count downloaded bytes (negative where a file starts anew) and report them."""
        self._done += int(num_bytes)
        if self._progress is None:
            return
        try:
            self._progress(min(self._done, self._total), self._total)
        except BaseException as error:
            self._failure = error
            raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            with _without_retry_notes():
                yield
        # The client's own errors share no base class, and those of its HTTP library change with
        # its versions.
        except Exception as error:
            if self._failure is not None:
                raise self._failure from None
            raise _explanation(error, self._name) from error


@contextmanager
def _without_retry_notes() -> Iterator[None]:
    """The client notes each failed attempt; the error that ends the last one says it all."""
    client = logging.getLogger("huggingface_hub.utils._http")
    level = client.level
    client.setLevel(logging.ERROR)
    try:
        yield
    finally:
        client.setLevel(level)


def _cached(name: HubName) -> Path | None:
    """The cached model, if it is there with all its weights."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name.repo, name.file or "config.json", revision=name.revision)
    if not isinstance(found, str):
        return None
    path = Path(found)
    if name.file is not None:
        return path
    return path.parent if _has_weights(path.parent) else None


def _has_weights(directory: Path) -> bool:
    for single, index in ((SAFETENSORS, SAFETENSORS_INDEX), (BIN, BIN_INDEX)):
        if (directory / single).exists():
            return True
        if (directory / index).exists():
            shards = set(read_weight_map(directory / index).values())
            return all((directory / shard).exists() for shard in shards)
    return False


def _sizes(info: ModelInfo) -> dict[str, int]:
    """File name -> bytes (0 where the Hub does not say), as listed for a repository."""
    return {file.rfilename: file.size or 0 for file in info.siblings or ()}


def _chosen_gguf(name: HubName, sizes: Mapping[str, int]) -> str:
    """The GGUF file that was asked for, or the only one there is."""
    ggufs = sorted(file for file in sizes if file.endswith(".gguf"))
    if name.file in ggufs:
        return name.file
    if name.file is None and len(ggufs) == 1:
        return ggufs[0]
    if not ggufs:
        wanted = "" if name.file else "config.json and no "
        raise DownloadError(f"{name}: the repository holds no {wanted}GGUF file")
    missing = f"holds no file {name.file}" if name.file else "holds several GGUF files"
    raise DownloadError(f"{name.repo} {missing}; {_choice(name, ggufs)}")


def _choice(name: HubName, ggufs: list[str]) -> str:
    more = f" and {len(ggufs) - _MAX_LISTED} more" if len(ggufs) > _MAX_LISTED else ""
    return f"choose one as {name.repo}:FILE, FILE being {', '.join(ggufs[:_MAX_LISTED])}{more}"


def _explanation(error: Exception, name: HubName) -> DownloadError:
    """What an error of the Hub's client means and what can be done about it."""
    from huggingface_hub import constants, errors

    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
    if isinstance(error, errors.GatedRepoError):
        return DownloadError(
            f"{name}: access must be asked for; accept the conditions on "
            f"{constants.ENDPOINT}/{name.repo} and log in with `hf auth login` (or set HF_TOKEN)"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return DownloadError(f"{name}: {name.repo} has no branch, tag or commit {name.revision}")
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403):
        return DownloadError(
            f"{name}: no such local path, and on the Hub it does not exist or may not be read by "
            "you; check the name, and for a private model log in with `hf auth login` (or set "
            "HF_TOKEN)"
        )
    cause: BaseException = error
    if isinstance(error, errors.LocalEntryNotFoundError):
        cause = error.__cause__ or error
    if isinstance(cause, errors.OfflineModeIsEnabled):
        return UnreachableError(
            f"{name} cannot be fetched, because HF_HUB_OFFLINE is set, and it is not, or not "
            f"wholly, in the cache {constants.HF_HUB_CACHE}; unset it, or give the path of a local "
            "model"
        )
    reason = (str(cause).strip().splitlines() or [""])[0]
    described = f"{type(cause).__name__}: {reason}" if reason else type(cause).__name__
    if isinstance(error, OSError) and error.errno and not isinstance(error, ConnectionError):
        return DownloadError(
            f"{name} could not be stored in {constants.HF_HUB_CACHE}: {error.strerror or error}; "
            "set HF_HUB_CACHE to a directory with room that can be written to"
        )
    if status is not None and status < 500:
        return DownloadError(f"{name} could not be fetched: {described}")
    return UnreachableError(
        f"{name} is not in the cache {constants.HF_HUB_CACHE} and could not be fetched from "
        f"{constants.ENDPOINT} ({described:.300}); check the network, or give the path of a local "
        "model"
    )


def _bar_class(download: _Download | None) -> type[Any]:
    """A progress bar for the Hub's client that shows nothing and counts for `download`."""
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc, unused-ignore]
        def __init__(self, *args: Any, **options: Any) -> None:
            options["disable"] = True
            super().__init__(*args, **options)  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            if download is not None:
                download.advance(n or 0)

        def update_transfer(self, n: float | None = 1) -> None:
            """Bytes on the wire: not counted a second time beside those that are written."""

    return Bar
