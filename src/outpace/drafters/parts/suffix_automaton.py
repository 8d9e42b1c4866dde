"""An online suffix automaton: every substring of a growing text, with how often it occurred.

Blumer et al. 1985, in the online form: one token is appended in amortised constant time, and the
number of states stays under twice, that of transitions under three times the number of tokens.
"""

from __future__ import annotations

ROOT = 0
"""The state of the empty string."""


class SuffixAutomaton:
    """All substrings of one or more texts. A state stands for the substrings that end at the same
    places; they are suffixes of its longest one, and the next shorter suffix belongs to its link.

    next: for each state the state each continuation leads to, in the order they first occurred.
    link: for each state that of its longest suffix with other ends; -1 for the root.
    length: for each state the length of its longest string, in tokens.
    count: for each state how often its strings of at most `max_context` + 1 tokens occurred. So
        token `t` followed state `s` `count[next[s][t]]` times, `s` taken as at most `max_context`
        tokens.

    Read freely, change only by `extend` and `end_text`. A token costs at most `max_context` + 1
    updates of counts, also where one token repeats without end and the text has as many different
    suffixes as tokens.
    """

    def __init__(self, max_context: int) -> None:
        self.max_context = max_context
        self.next: list[dict[int, int]] = [{}]
        self.link = [-1]
        self.length = [0]
        self.count = [0]
        self.num_tokens = 0
        self._whole = ROOT  # the state of the text so far
        self._suffix, self._suffix_len = ROOT, 0  # the longest suffix whose count is kept

    def __len__(self) -> int:
        """How many states there are."""
        return len(self.next)

    def extend(self, token: int) -> None:
        """Append a token to the text."""
        self._whole = self._append(token)
        self.num_tokens += 1
        link, length = self.link, self.length
        # What is followed by `token` now: the text itself, hence each of its suffixes.
        state = self.next[self._suffix][token]
        suffix_len = self._suffix_len = min(self._suffix_len, self.max_context) + 1
        while length[link[state]] >= suffix_len:
            state = link[state]
        self._suffix = state
        count = self.count
        while state > ROOT:
            count[state] += 1
            state = link[state]

    def end_text(self) -> None:
        """Start another text: no substring reaches over the boundary."""
        self._whole = ROOT
        self._suffix, self._suffix_len = ROOT, 0

    def longest_repeat(self) -> tuple[int, int]:
        """(state, length) of the longest suffix of the text, within `max_context`, that occurred
        before; (ROOT, 0) if there is none."""
        state, length = self._suffix, self._suffix_len
        while state > ROOT and self.count[state] < 2:
            state = self.link[state]
            length = self.length[state]
        return self.shortened(state, length)

    def step(self, state: int, length: int, token: int) -> tuple[int, int]:
        """From the longest suffix of some tokens that is in the texts, within `max_context`, to
        that of the same tokens and `token`: (state, length), or (ROOT, 0) if there is none.

        The texts may have grown in between: then a suffix is found that is in them, perhaps no
        longer the longest.
        """
        state, length = self.shortened(state, length)
        while token not in self.next[state]:
            if state == ROOT:
                return ROOT, 0
            state = self.link[state]
            length = self.length[state]
        return self.shortened(self.next[state][token], length + 1)

    def shortened(self, state: int, length: int) -> tuple[int, int]:
        """(state, length) of the last `length` tokens of a state's strings, or of the last
        `max_context` of these: another state may stand for them, also since the texts grew."""
        length = min(length, self.max_context)
        while state > ROOT and self.length[self.link[state]] >= length:
            state = self.link[state]
        return state, length

    def _append(self, token: int) -> int:
        """Add what `token` adds after the text; return the state of the longer text."""
        following, link, length = self.next, self.link, self.length
        at = self._whole
        known = following[at].get(token)
        if known is not None:  # only after `end_text`: the beginning of another text
            return known if length[known] == length[at] + 1 else self._split(at, token, known)
        new = self._add({}, length[at] + 1)
        while at >= ROOT and token not in following[at]:
            following[at][token] = new
            at = link[at]
        if at < ROOT:
            link[new] = ROOT
            return new
        known = following[at][token]
        link[new] = known if length[known] == length[at] + 1 else self._split(at, token, known)
        return new

    def _split(self, at: int, token: int, known: int) -> int:
        """Give those strings of `known` a state of their own that are no longer than the longest
        one of `at` followed by `token`: they now end where the others do not."""
        following, link = self.next, self.link
        clone = self._add(following[known].copy(), self.length[at] + 1)
        link[clone] = link[known]
        self.count[clone] = self.count[known]
        link[known] = clone
        while at >= ROOT and following[at].get(token) == known:
            following[at][token] = clone
            at = link[at]
        return clone

    def _add(self, following: dict[int, int], length: int) -> int:
        self.next.append(following)
        self.link.append(ROOT)
        self.length.append(length)
        self.count.append(0)
        return len(self.next) - 1
