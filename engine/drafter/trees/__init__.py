"""From a drafter's scores to what it drafts: chains and trees, for greedy, coupled and rejection sampling.

=============  ======================================================================================================
``choice``     ``choose``: tokens behind rows of logits (``Ask`` -> ``Choice``), best ones or draws with their ``q``
``growth``     ``grow``: the draft that suits a request, for drafters that run once per depth; one of the next three
``chain``      token by token; the draft of requests whose penalties depend on the path
``levels``     the most probable tree, level by level (EAGLE-2)
``static``     a tree of independent draws, whose shape is settled before they are made
``blocks``     ``block_trees``: drafts of drafters that score all depths in one forward
``rounds``     those of them that need a round per depth: a parent's token or a history changes the rows
``candidates`` the few tokens per depth that a condition on parents is evaluated on
=============  ======================================================================================================
"""
