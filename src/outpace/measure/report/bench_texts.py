"""The sentences of the benchmark's report that are the same for every run."""

from __future__ import annotations

INTERRUPTED = (
    "This run was ended before it was whole. What follows is what there was until then: fewer "
    "rounds, prompts or methods than were asked for."
)
METHOD = (
    "Plain decoding and every method decoded the same prompts in one process, per path on one "
    "loaded model, one right after another and in changing order, so that what slows the machine "
    "down for a while slows down all of them. Plain decoding is the same engine with empty "
    "drafts. Every kind of run was warmed up before it was timed."
)
SPEEDUP = (
    "A method's tokens per second over plain decoding's, for the same prompts, from the first "
    "token of an answer to its last; 1 is no difference. Columns are kinds of prompts, with how "
    "many there were. Figures are geometric means over prompts, with 95 % intervals (Student's, of "
    "their logarithms). Below 3 prompts there is no interval, and n says how many there were."
)
ACCEPTANCE = (
    "How often the draft token at a position was accepted, of the drafts that had one there and "
    "whose earlier tokens all stood; the table says how many those were. This depends on the "
    "model and the text, not on the machine. Positions that few drafts reach say little."
)
STEPS = (
    "Means over steps. **Draft** is the drafter, **verify** the target's pass over the newest "
    "token and the drafts, **rest** what else the step does: probabilities, decisions, output. "
    "The predicted speed-up is the acceptance length over the step's cost in plain steps, with "
    "the pass taken from the v(n) below; where it is far from the measured one, one of its terms "
    "does not hold."
)
PASSES = (
    "v(n) is the cost of one pass over n rows, in passes over one row. While reading the weights "
    "decides, further rows are nearly free, and speculation lives on that. The last column of "
    "the table compares with reading the weights alone at the speed of this machine's memory: at "
    "100 % no engine could be faster here with these weights."
)
CROSSOVER = (
    "With several requests in a pass, plain decoding shares the reading of the weights as well, "
    "and the rows that drafts add are no longer nearly free. Each figure compares with plain "
    "decoding at the same batch."
)
PEERS = (
    "The same weights, prompts and machine, in turns with our own runs. Other engines round "
    "differently, so that their greedy texts may part from ours without either being wrong."
)
READING = (
    "Compare within this run. Another machine, or this one on another day, may be faster or slower "
    "by more than the methods differ.",
    "A ratio whose interval contains 1 is no difference that this run could show.",
    "The best of several methods looks better than it is, because it was chosen for its figure. "
    "Methods whose intervals overlap should count as equals.",
    "**alpha** is how often a draft token is accepted, given that all before it were, over all "
    "positions. The **acceptance length** is the number of tokens that a step yields, the target's "
    "own included; plain decoding has 1.",
    "**c** is the cost of one draft token and **v(n)** that of a pass over n rows, both in passes "
    "over one row. If a step yields E tokens from K drafts, the speed-up is about "
    "E / (K c + v(K+1)): a step must gain more than it costs.",
    "Greedy decoding (temperature 0) of small models repeats itself, which flatters methods that "
    "copy. Other temperatures show how much.",
    "“Prompts included” counts the whole call, from the request to the last token. The shorter the "
    "answer, the closer that ratio is to 1, since no method reads the prompt any faster.",
)
