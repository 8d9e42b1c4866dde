"""The file of advice: what is written is read again, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outpace.errors import ModelError, OptionError
from outpace.measure.advise.configuration import (
    AdvisedConfig,
    names_same_model,
    portable_name,
    read_config,
    write_config,
)

CONFIG = AdvisedConfig(
    model="tiny",
    fingerprint="abc",
    dtype="float32",
    speculative_config={"method": "suffix", "num_speculative_tokens": 4},
    advice={"text": "use suffix, 1.4 times plain — “here”", "ratio": 1.4},
)


def test_what_cannot_be_finished_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "advice.json"
    write_config(path, CONFIG)

    def full(*args: Any, **values: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OptionError, match="No space left"):
        write_config(path, replace(CONFIG, model="another"))
    monkeypatch.undo()
    assert read_config(path) == CONFIG
    assert [each.name for each in tmp_path.iterdir()] == ["advice.json"]


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "advice.json"
    write_config(path, CONFIG)
    assert read_config(path) == CONFIG


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"outpace_config": 2}, "outpace_config is 2"),
        ({"outpace_config": True}, "outpace_config is True"),
        ({"outpace_config": None}, "outpace_config is None"),
        ({"method": "suffix"}, "unknown key 'method'"),
        ({"dtype": 4}, "dtype must be a text, got 4"),
        ({"speculative_config": "suffix"}, "speculative_config must be an object"),
        ({"advice": []}, "advice must be an object"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "advice.json"
    write_config(path, CONFIG)
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")
    with pytest.raises(OptionError, match=message) as raised:
        read_config(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "no configuration of outpace"),
        ('{"model": "tiny"}', "no configuration of outpace"),
        ('{"outpace_config": 1, "outpace_config": 1}', "given twice"),
        ('{"outpace_config": 1, "model": "tiny"}', "'dtype' is missing"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text, "utf-8")
    with pytest.raises(OptionError, match=message):
        read_config(path)


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    (tmp_path / "latin.json").write_bytes(b'{"\xe9": 1}')
    with pytest.raises(OptionError, match="not UTF-8"):
        read_config(tmp_path / "latin.json")
    with pytest.raises(OptionError, match="is a folder"):
        write_config(tmp_path, CONFIG)


def test_another_model_is_named_with_the_one_measured() -> None:
    CONFIG.check("abc", "tiny", "advice.json")
    with pytest.raises(ModelError, match=r"advice.json .* tiny .* abc, but other has xyz"):
        CONFIG.check("xyz", "other", "advice.json")


def test_paths_mean_the_same_however_spelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    assert portable_name("model") == str(tmp_path / "model")
    assert portable_name("an-alias") == "an-alias"
    assert names_same_model("./model", str(tmp_path / "model"))
    assert not names_same_model("model", "an-alias")
