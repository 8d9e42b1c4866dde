"""EAGLE-1 (Li et al. 2401.15077): a one-layer head over the target's last features drafts.

Everything but the kind of head stands in `parts/eagle_drafter.py`.
"""

from __future__ import annotations

from outpace.drafters.parts.eagle_drafter import EagleDrafter


class EagleHeadDrafter(EagleDrafter):
    """Drafts with a head that joins the target's last features with the next token."""

    algorithm = "eagle"
