"""Trained drafters of every public layout, read unchanged and normalised.

``read.read_drafter`` reads, ``write.write_drafter`` writes; what both hold is ``checkpoint.DrafterCheckpoint``.

Tensors have these names, whatever layout they come from. H: width of the drafter, T of the target, V and D: vocabulary
of the target and of the drafter's head, n: taps, W: width of the states that a row reads (n T; H without taps), Q and
K: width of all query and of all key heads, d: of one head, F: of the feed-forward part, R: rank of the Markov head.

=============================  ===========  ============================================================================
name                           shape        is
=============================  ===========  ============================================================================
embed.weight                   [V, H]       the drafter's own embedding; absent: the target's
head.weight                    [D, H]       the drafter's own head; absent: the target's
norm.weight                    [H]          RMS norm before the head (eagle 3, p-eagle, dflash, parallelspec-medusa)
fc.weight, fc.bias             [H, H + W]   eagle 1, parallelspec unless it reads no states: of [token embedding; state]
fc.weight                      [H, W]       eagle 3, p-eagle, dflash: of the taps, one behind the other
fc_norm.weight                 [W]          ``norm_before_fc``: RMS norm of all taps together
fc_norms.{tap}.weight          [T]          ``fc_norm``: RMS norm of each; by the place among the taps
hidden_norm.weight             [H]          dflash: RMS norm of what ``fc`` makes of the taps
mask_state                     [W]          the state of mask rows (p-eagle, parallelspec-eagle), read in place of W
mask_embeddings                [k, H]       parallelspec: token embeddings of the k mask rows; k + 1 drafts
layers.{i}.input_norm.weight   [H]          RMS norm of a layer's input; none in eagle 1's first layer
layers.0.embed_norm.weight     [H]          eagle 3, p-eagle: RMS norm of the embedding, first half of a row
layers.0.hidden_norm.weight    [H]          eagle 3, p-eagle: RMS norm of the state, second half of a row
layers.{i}.q.weight            [Q, H]       also k, v [K, H]; [.., 2 H] in the first layer of eagle 3 and p-eagle
layers.{i}.q.bias              [Q]          also k, v [K]: ``attention_bias``; o [H]: ``output_bias``
layers.{i}.q_norm.weight       [d]          also k_norm; ``qk_norm``
layers.{i}.o.weight            [H, Q]
layers.{i}.ffn_norm.weight     [H]          RMS norm before the feed-forward part
layers.{i}.gate.weight         [F, H]       also up; down is [H, F]
heads.{k}.blocks.{j}.weight    [T, T]       medusa: of a residual block, also bias [T]
heads.{k}.out.weight           [V, T]       medusa: logits of head k
markov.w1, markov.w2           [V, R]       dflash: previous token's embedding, and back to logits; w2 is [D, R]
markov.gate.weight             [R, H + R]   ``gated``, of [state; embedding], with bias [R]
markov.joint.weight            [3 R, 2 R+H] ``rnn``, of [memory; embedding; state] to [gate; new; out], with bias [3 R]
confidence.weight              [1, H (+R)]  with bias [1]: chance of acceptance, of [state; Markov embedding]
=============================  ===========  ============================================================================

ParallelSpec's authors have published no checkpoint, so that its layout is ours: ``model.safetensors`` with the names
above, and a ``config.json`` with one object ``spectra_drafter``, which has the fields of ``DrafterSpec`` by their names
(``layers`` is an object with the fields of ``LayerShape``). Fields that have a default may be left out.
"""
