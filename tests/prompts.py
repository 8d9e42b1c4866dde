"""Prompts for tests with real models where no data set is at hand. Written for this project."""

from __future__ import annotations

from typing import NamedTuple


class Prompt(NamedTuple):
    category: str
    text: str


_NOTICE = (
    "The library on Mill Street will be closed from Monday to Thursday while the heating is "
    "replaced. Books can be returned through the slot beside the door. The reading group meets "
    "in the town hall instead, at the usual time of half past six."
)
_RECIPE = (
    "Peel four large potatoes and cut them into slices. Fry an onion in butter until it is soft. "
    "Add the potatoes, cover them with milk, and let them simmer for twenty minutes. Season with "
    "salt and nutmeg, and serve with dark bread."
)
_REPORT = (
    "In March the workshop repaired 214 bicycles, 30 more than in February. Most of them had worn "
    "brake pads. Two volunteers joined, and one left for another town. The next open day is on "
    "the 12th of May, between ten and four."
)
_LETTER = (
    "Dear neighbours, on Saturday we shall trim the hedge between our gardens. It will be loud "
    "between nine and eleven. If you need quiet that morning, please tell us, and we shall choose "
    "another day. Your friends from number eight."
)
_FUNCTION = """\
def mean_speed(distances, hours):
    total = 0
    for distance in distances:
        total = total + distance
    return total / hours
"""
_CLASS = """\
class Counter:
    def __init__(self):
        self.count = 0

    def increase(self):
        self.count += 1

    def reset(self):
        self.count = 0
"""

_TEXTS: dict[str, tuple[str, ...]] = {
    "writing": (
        "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
        "Describe a rainy afternoon in a small harbour town.",
        "Write a poem of eight lines about an old oak tree.",
        "Write a polite message that cancels a dentist's appointment.",
        "Invent three names for a bakery and say what each suggests.",
        "Write the opening paragraph of a mystery set in a railway station.",
        "Describe the taste of an orange to someone who has never eaten one.",
        "Write a diary entry of a sailor on the first day of a long voyage.",
    ),
    "question": (
        "Why does the moon seem larger near the horizon?",
        "What is the difference between weather and climate?",
        "How does a refrigerator keep food cold?",
        "Name five animals that are active at night and say how they find their way.",
        "Why do leaves change their colour in autumn?",
        "What should I think about before I adopt a dog?",
    ),
    "code": (
        "Write a Python function that says whether a word reads the same backwards.",
        "Write a Python function that merges two sorted lists into one sorted list.",
        "Write an SQL query that lists the ten customers with the highest total of orders.",
        "Explain what a recursive function is, with an example in Python.",
        "Write a shell command that counts the lines of all text files in a folder.",
        "Write a JavaScript function that removes repeated values from an array.",
        f"Add type annotations and a docstring to this function:\n\n{_FUNCTION}",
        f"Rename the method `increase` to `step` and repeat the whole class:\n\n{_CLASS}",
        f"Rewrite this function with the built-in sum:\n\n{_FUNCTION}",
    ),
    "rewriting": (
        f"Repeat this text, but write Tuesday instead of Monday:\n\n{_NOTICE}",
        f"Correct the mistakes, if there are any, and repeat the text:\n\n{_RECIPE}",
        f"Rewrite this letter so that it speaks of Sunday instead of Saturday:\n\n{_LETTER}",
        f"Turn this recipe into a numbered list of steps:\n\n{_RECIPE}",
        f"Repeat the following report with all numbers written as words:\n\n{_REPORT}",
        f"Rewrite this notice in a friendlier tone:\n\n{_NOTICE}",
    ),
    "summarising": (
        f"Summarise this notice in one sentence:\n\n{_NOTICE}",
        f"Summarise this report in one sentence:\n\n{_REPORT}",
        f"What is this letter about? Answer in ten words.\n\n{_LETTER}",
        f"Give this recipe a title and list what one has to buy:\n\n{_RECIPE}",
    ),
    "maths": (
        "A train travels 180 kilometres in two hours. How far does it travel in five hours?",
        "I buy three notebooks for 4 coins each and pay with 20 coins. What change do I get?",
        "What is the area of a rectangle with sides of 7 and 12 metres? Show the steps.",
        "List the first ten prime numbers.",
        "Solve 3x + 5 = 26 and explain each step.",
        "Which is larger, three eighths or two fifths? Explain.",
    ),
    "extraction": (
        f"List all dates and times in this text:\n\n{_REPORT}",
        f"Which numbers does this report contain? Copy each with its sentence.\n\n{_REPORT}",
        f"Copy the sentence that says where the reading group meets:\n\n{_NOTICE}",
        f"List the ingredients named in this recipe:\n\n{_RECIPE}",
        f"Who wrote this letter, and on which day will it be loud?\n\n{_LETTER}",
        "Return the name and the town as JSON: Ms Ada Brandt moved from Hill End to Sandby.",
    ),
}

PROMPTS: tuple[Prompt, ...] = tuple(
    Prompt(category, text) for category, texts in _TEXTS.items() for text in texts
)
