"""Where models are kept, what names they go by, and what is listed of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from model_files import CONFIG, write_gguf, write_hf
from published import ALIAS, kept, runs, sha256

from outpace.errors import DownloadError, ModelError
from outpace.models.hf.config import config_from_hf
from outpace.models.hub import aliases, names
from outpace.models.tensors import num_parameters


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path))
    assert aliases.cache_dir() == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OUTPACE_CACHE", "~/models")
    assert aliases.cache_dir() == tmp_path / "models"
    monkeypatch.setenv("OUTPACE_CACHE", "")
    assert "outpace" in aliases.cache_dir().parts


def test_a_cache_that_cannot_be_made(
    release: aliases.Release, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path / "file" / "cache"))
    assert aliases.cached(ALIAS) is None
    with pytest.raises(DownloadError, match=r"cannot be written .*set OUTPACE_CACHE to a writ"):
        names.resolve(ALIAS)
    assert runs(folder) == []


def test_a_cache_that_is_read_only(
    release: aliases.Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = names.pull(ALIAS)
    monkeypatch.setattr(Path, "mkdir", refuse)
    assert names.pull(ALIAS) == path
    path.unlink()
    with pytest.raises(DownloadError, match=r"\(Permission denied\); set OUTPACE_CACHE"):
        names.pull(ALIAS)


def test_a_full_disk(release: aliases.Release, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(DownloadError, match=r"could not be stored in .*: No space left on device"):
        names.pull(ALIAS)
    assert kept(release) == set()


# --- names ------------------------------------------------------------------------------------


def test_local_models_resolve_to_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_gguf(tmp_path / "a.gguf")
    directory = write_hf(tmp_path / "org" / "name")
    assert names.resolve(str(file)) == file
    assert names.resolve(str(directory)) == directory
    monkeypatch.chdir(tmp_path)
    assert names.resolve("org/name") == Path("org/name")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert names.resolve("~/a.gguf") == file


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("smolm2-135", r"did you mean 'smollm2-135m'\? known aliases: smollm2-135m;"),
        ("SmolLM2-135M", r"did you mean 'smollm2-135m'\?"),
        ("llama", r"no model 'llama': .* known aliases: smollm2-135m; a path to a .gguf file"),
        ("missing.gguf", r"neither an alias nor an existing path"),
        ("/no/such/dir", r"neither an alias nor an existing path"),
        ("", r"no model ''"),
        ("nul\0byte", r"neither an alias nor"),
        ("x" * 5000, r"neither an alias nor"),
    ],
)
def test_names_that_are_no_model(given: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        names.resolve(given)


def test_a_home_directory_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="model '~no-such-user/x': no such user's home"):
        names.resolve("~no-such-user/x")
    monkeypatch.setenv("OUTPACE_CACHE", "~no-such-user/x")
    with pytest.raises(ModelError, match="OUTPACE_CACHE '~no-such-user/x': no such user's home"):
        aliases.list_models()


def test_files_that_are_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ModelError, match=r"notes.txt is a file but not a .gguf file; give a GGUF"):
        names.resolve(str(tmp_path / "notes.txt"))


def test_pull_of_an_unknown_alias() -> None:
    with pytest.raises(ModelError, match=r"unknown model alias 'smollm2'; did you mean 'smollm2-"):
        names.pull("smollm2")


def test_list_models(release: aliases.Release) -> None:
    assert aliases.list_models() == [
        aliases.ListedModel(ALIAS, "A tiny model", "Apache-2.0", release.file_bytes, None)
    ]
    path = names.pull(ALIAS)
    assert aliases.list_models()[0].path == path


def test_show(release: aliases.Release, tmp_path: Path) -> None:
    facts = names.show(ALIAS)
    config = config_from_hf(CONFIG)
    assert facts["name"] == ALIAS
    assert facts["path"] == str(aliases.cached(ALIAS))
    assert facts["architecture"] == "llama"
    assert facts["num_hidden_layers"] == 2
    assert facts["stored_dtype"] == "F32"
    assert facts["num_parameters"] == num_parameters(config)
    assert facts["file_bytes"] == release.file_bytes
    assert facts["tokenizer"]["vocab_size"] == 263
    assert facts["tokenizer"]["end_token_ids"] == [0]
    assert len(facts["fingerprint"]) == 64
    json.dumps(facts)
    directory = write_hf(tmp_path / "model", num_shards=2)
    (directory / "unrelated.safetensors").write_bytes(b"x")
    shards = sum(file.stat().st_size for file in directory.glob("model-*.safetensors"))
    assert names.show(str(directory))["file_bytes"] == shards


@pytest.mark.model
def test_the_default_alias_is_what_it_says() -> None:
    path = names.resolve("smollm2-135m")
    release = aliases.ALIASES["smollm2-135m"]
    assert sha256(path) == release.file_sha256
    assert names.show("smollm2-135m")["num_parameters"] == 134_515_008


def test_show_says_what_would_run_a_model_that_our_decoder_does_not(tmp_path: Path) -> None:
    folder = write_hf(tmp_path / "tiny")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "olmo2"}))
    facts = names.show(str(folder))
    assert (facts["runs_on"], facts["architecture"]) == ("transformers adapter", "olmo2")
    assert facts["tokenizer"]["vocab_size"] > 0
