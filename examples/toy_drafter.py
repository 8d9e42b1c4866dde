"""A drafter in a few lines: after each token, guess the token that followed it most often."""

from collections import Counter
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from itertools import pairwise

from outpace.drafters.base import Drafter, DrafterOptions
from outpace.types import Draft, Sequence


@dataclass(frozen=True, kw_only=True)
class ToyOptions(DrafterOptions):
    min_count: int = field(default=1, metadata={"help": "how often a pair must have occurred"})


class ToyDrafter(Drafter):
    Options = ToyOptions
    options: ToyOptions

    def propose(self, seqs: List[Sequence], budgets: List[int]) -> list[Draft]:
        return [self._guess(seq.tokens, k) for seq, k in zip(seqs, budgets, strict=True)]

    def _guess(self, tokens: list[int], budget: int) -> Draft:
        counts, chain = Counter(pairwise(tokens)), [tokens[-1]]
        while len(chain) <= budget:
            seen = [(n, after) for (token, after), n in counts.items() if token == chain[-1]]
            if not seen or max(seen)[0] < self.options.min_count:
                break
            chain.append(max(seen)[1])
        return Draft(tuple(chain[1:]), origin="toy")  # no q: nothing here was drawn at random


if __name__ == "__main__":
    from outpace import LLM, SamplingParams

    with LLM("smollm2-135m", speculative_config={"method": ToyDrafter}) as llm:
        (output,) = llm.generate("1, 2, 3, 4, 5,", SamplingParams(temperature=0, max_tokens=64))
        print(output.outputs[0].text, output.stats, llm.metrics, sep="\n\n")
