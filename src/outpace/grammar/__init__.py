"""Structured output: which tokens keep an answer to a JSON schema, an expression or a grammar.

The grammar work is llguidance's, which is imported when the first grammar is compiled. What is ours
is that a state can be asked about any position in any order, drafted ones included, and follows the
tokens by itself.
"""

from outpace.grammar.compiler import GrammarCompiler
from outpace.grammar.state import Grammar, GrammarState

__all__ = ["Grammar", "GrammarCompiler", "GrammarState"]
