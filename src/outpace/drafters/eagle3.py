"""EAGLE-3 (Li et al. 2503.01840): a one-layer head over low, middle and high features drafts.

Everything but the kind of head stands in `parts/eagle_drafter.py`.
"""

from __future__ import annotations

from outpace.drafters.parts.eagle_drafter import EagleDrafter


class Eagle3Drafter(EagleDrafter):
    """Drafts with a head that joins the features of several target layers with the next token."""

    algorithm = "eagle3"
