"""A draft is bound to its target: whose it is stands in its `config.json`, and is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from outpace.errors import ModelError

if TYPE_CHECKING:
    from outpace.heads.target_parts import TargetParts

KEY = "outpace"
FORMAT = 1
STORED, TARGET = "stored", "target"


@dataclass(frozen=True, slots=True)
class Binding:
    """What a draft of ours says of its origin, under the key "outpace".

    target_name: what its target was called when it was trained. fingerprints: of the target's
    weights and of its table of tokens. lm_head: whether its output head is stored with it, or is
    the rows of the target's own.
    """

    target_name: str
    target_fingerprint: str
    tokenizer_fingerprint: str
    lm_head: str = STORED

    @classmethod
    def to(cls, parts: TargetParts, *, lm_head: str = STORED) -> Binding:
        """The binding of a draft that is trained for this target now."""
        return cls(parts.name, parts.fingerprint, parts.tokenizer_fingerprint, lm_head)

    def as_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    def check(self, parts: TargetParts, draft: str) -> None:
        """Raise ModelError unless the draft was trained for this target."""
        if self.tokenizer_fingerprint != parts.tokenizer_fingerprint:
            what = "whose tokens are others"
        elif self.target_fingerprint != parts.fingerprint:
            what = "whose weights are others"
        else:
            return
        raise ModelError(
            f"{draft} was trained for {self.target_name} (fingerprint "
            f"{self.target_fingerprint:.12}), but the target is {parts.name} "
            f"({parts.fingerprint:.12}), {what}; train a draft for it with `outpace train`"
        )


def read_binding(values: Mapping[str, Any], name: str) -> Binding | None:
    """The binding in a draft's `config.json`; None in one that was not made here.

    Raises ModelError for one that this version does not read.
    """
    stated = values.get(KEY)
    if stated is None:
        return None
    try:
        fields = dict(stated)
        version = fields.pop("format")
        binding = Binding(**fields)
    except (TypeError, ValueError, KeyError) as error:
        raise ModelError(f"{name}: the key {KEY!r} of config.json is damaged ({error})") from error
    if version != FORMAT or binding.lm_head not in (STORED, TARGET):
        raise ModelError(
            f"{name}: made by another version (format {version!r}, lm_head {binding.lm_head!r}); "
            f"this one reads format {FORMAT}"
        )
    return binding
