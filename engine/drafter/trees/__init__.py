"""Chooses draft tokens from logits and grows them into chains and trees.

``choice`` chooses tokens after rows of logits: the best ones, or independent draws. ``draft_tree`` grows many drafts
together, depth by depth; ``growth`` has the two kinds, ranked and drawn. ``blocks`` drafts from one forward pass that
scored all depths.
"""
