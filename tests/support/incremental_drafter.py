"""Networks of drafters run as an engine does: rows of many sequences in one forward, keys and values in an arena."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.drafter.networks.dflash import DFlash
from engine.drafter.networks.eagle3 import Eagle3
from engine.drafter.networks.layer import Attend
from engine.drafter.networks.pairs import PairNetwork
from engine.drafter.spec import LayerShape
from tests.support.naive_drafter import Tree, path_to
from tests.support.tiny_drafters import TinyDrafter


@dataclass(slots=True)
class Arena:
    """Slots of all sequences' rows; what nobody sees any more stays there, as garbage."""

    shape: LayerShape
    keys: list[Tensor] = field(init=False)  # of every layer [slots, n_kv_heads, head_dim]
    values: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        empty = torch.empty(0, self.shape.n_kv_heads, self.shape.head_dim, dtype=torch.float64)
        self.keys, self.values = [empty] * self.shape.n_layers, [empty] * self.shape.n_layers

    @property
    def n_slots(self) -> int:
        return len(self.keys[0])

    def write(self, layer: int, key: Tensor, value: Tensor) -> None:
        self.keys[layer] = torch.cat((self.keys[layer], key))
        self.values[layer] = torch.cat((self.values[layer], value))

    def attend(self, sees: list[list[int]]) -> Attend:
        """Attention of rows that take the next slots and see these, their own among them."""

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            self.write(layer, key, value)
            hidden = torch.ones(len(sees), self.n_slots, dtype=torch.bool)
            for row, slots in enumerate(sees):
                hidden[row, slots] = False
            groups = self.shape.n_heads // self.shape.n_kv_heads
            keys, values = (store[layer].repeat_interleave(groups, dim=1) for store in (self.keys, self.values))
            scores = torch.einsum("nhd,shd->nhs", query, keys) * self.shape.head_dim**-0.5
            chances = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
            return torch.einsum("nhs,shd->nhd", chances, values)

        return attend


@dataclass(slots=True)
class Sequence:
    """Tokens x_0 .. x_r, the target's states at every position there will be, and where its committed rows are."""

    tokens: list[int]
    states: Tensor  # [positions, width]
    slots: list[int] = field(default_factory=list)

    @property
    def n_states(self) -> int:
        """Positions whose states are known: all but the last token's."""
        return len(self.tokens) - 1

    def copied(self, n_tokens: int, tokens: list[int]) -> Sequence:
        """A sequence that shares the first tokens: the row of their last pair is not shared, its token is not."""
        assert tokens[:n_tokens] == self.tokens[:n_tokens]
        states = self.states.clone()
        states[n_tokens:] = self.states[n_tokens:].flip(0)
        return Sequence(tokens, states, self.slots[: max(0, n_tokens - 1)])


@dataclass(slots=True)
class Packed:
    """Rows of one forward."""

    embedded: list[Tensor] = field(default_factory=list)
    states: list[Tensor | None] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    sees: list[list[int]] = field(default_factory=list)

    def add(self, embedded: Tensor, state: Tensor | None, position: int, sees: list[int]) -> int:
        """The row's place."""
        self.embedded.append(embedded)
        self.states.append(state)
        self.positions.append(position)
        self.sees.append(sees)
        return len(self.positions) - 1


class IncrementalDrafter:
    """EAGLE, ParallelSpec and P-EAGLE; what is speculative is dropped after every draft."""

    def __init__(self, drafter: TinyDrafter) -> None:
        assert isinstance(drafter.network, PairNetwork | Eagle3)
        self.spec, self.network = drafter.spec, drafter.network
        self.arena = Arena(self.network.shape)
        self.speculative: list[dict[int, int]] = []  # of each sequence of the last draft: slots by node or mask

    def read(self, sequences: list[Sequence], n_rows: int) -> None:
        """A chunk: at most so many more rows of each sequence, nothing drafted; the last row waits for the draft."""
        packed = Packed()
        for sequence in sequences:
            self.real_rows(sequence, packed, n_rows)
        self.forward(packed)

    def draft(self, sequences: list[Sequence], trees: list[Tree]) -> list[Tensor]:
        """Of every sequence ``[1 + nodes, vocab]``: scores of the root's children, then of each node's (EAGLE)."""
        packed = Packed()
        roots = [self.real_rows(sequence, packed) for sequence in sequences]
        outputs = self.forward(packed)
        found = [{-1: outputs[root]} for root in roots]  # outputs by node
        slots: list[dict[int, int]] = [{} for _ in sequences]
        self.speculative = slots
        for depth in range(1, 1 + max((len(path_to(t, n)) for t in trees for n in range(len(t))), default=0)):
            packed, places = Packed(), []
            for s, (sequence, tree) in enumerate(zip(sequences, trees, strict=True)):
                for node, (parent, token) in enumerate(tree):
                    if len(path_to(tree, node)) == depth:
                        slots[s][node] = self.arena.n_slots + len(places)
                        sees = sequence.slots + [slots[s][other] for other in upwards(tree, node)]
                        state = self.network.next_states(found[s][parent])
                        position = len(sequence.slots) - 1 + depth
                        packed.add(self.embed(token), state, position, sees)
                        places.append((s, node))
            outputs = self.forward(packed)
            for row, (s, node) in enumerate(places):
                found[s][node] = outputs[row]
        return [self.network.logits(torch.stack([f[n] for n in range(-1, len(f) - 1)])) for f in found]

    def draft_parallel(self, sequences: list[Sequence]) -> list[Tensor]:
        """Of every sequence ``[n_drafts, vocab]``: real rows that are new and masks, all in one forward."""
        assert self.spec.n_drafts is not None
        packed, first = Packed(), self.arena.n_slots
        places, self.speculative = [], []
        for sequence in sequences:
            rows = [self.real_rows(sequence, packed)]
            embedded, states = self.network.mask_rows(self.spec.n_drafts - 1)
            seen = list(sequence.slots)
            for i, mask in enumerate(embedded):
                seen = [*seen, first + len(packed.positions)]
                state = None if states is None else states[i]
                rows.append(packed.add(mask, state, len(sequence.slots) + i, seen))
            places.append(rows)
            self.speculative.append(dict(enumerate(seen[len(sequence.slots) :])))
        outputs = self.forward(packed)
        return [self.network.logits(outputs[rows]) for rows in places]

    def real_rows(self, sequence: Sequence, packed: Packed, n_rows: int | None = None) -> int:
        """Adds the rows that are known and not yet kept; returns the last one's place."""
        first, row = self.arena.n_slots, -1
        shift = 1 if self.spec.reads_states else 0
        n_known = len(sequence.tokens) - shift
        begin = len(sequence.slots)
        for i in range(begin, n_known if n_rows is None else min(n_known - 1, begin + n_rows)):
            sequence.slots.append(first + len(packed.positions))
            state = self.network.fuse(sequence.states[i]) if self.spec.reads_states else None
            row = packed.add(self.embed(sequence.tokens[i + shift]), state, i, list(sequence.slots))
        return row

    def forward(self, packed: Packed) -> Tensor:
        if not packed.positions:
            return torch.empty(0)
        known = [state for state in packed.states if state is not None]
        states = torch.stack(known) if known else None
        attend = self.arena.attend(packed.sees)
        return self.network(torch.stack(packed.embedded), states, torch.tensor(packed.positions), attend)

    def embed(self, token: int) -> Tensor:
        return self.network.embed_tokens(torch.tensor(token))


class IncrementalDFlash:
    """The DFlash family: context kept by layer, blocks dropped after every draft."""

    def __init__(self, drafter: TinyDrafter) -> None:
        assert isinstance(drafter.network, DFlash)
        self.spec, self.network = drafter.spec, drafter.network
        self.arena = Arena(self.network.shape)

    def read(self, sequences: list[Sequence], n_rows: int | None) -> None:
        """Contexts that are known and not yet kept, at most so many more of each sequence."""
        states, positions = [], []
        for sequence in sequences:
            begin = len(sequence.slots)
            until = sequence.n_states if n_rows is None else min(sequence.n_states, begin + n_rows)
            for i in range(begin, until):
                sequence.slots.append(self.arena.n_slots + len(positions))
                states.append(sequence.states[i])
                positions.append(i)
        if positions:
            fused = self.network.fuse(torch.stack(states))
            for layer, (key, value) in enumerate(self.network.context(fused, torch.tensor(positions))):
                self.arena.write(layer, key, value)

    def draft(self, sequences: list[Sequence], trees: list[Tree]) -> list[tuple[Tensor, Tensor | None]]:
        """Of every sequence ``[1 + nodes, vocab]`` scores and ``[1 + nodes]`` chances of the root's children and of
        each node's."""
        assert self.spec.n_drafts is not None
        self.read(sequences, None)
        blocks = self.network.block(torch.tensor([s.tokens[-1] for s in sequences]), self.spec.n_drafts)
        n_slots, first = blocks.shape[1], self.arena.n_slots
        positions, sees = [], []
        for row, sequence in enumerate(sequences):
            own = [first + row * n_slots + slot for slot in range(n_slots)]
            positions += [sequence.n_states + slot for slot in range(n_slots)]
            sees += [sequence.slots + (own[: slot + 1] if self.spec.causal_block else own) for slot in range(n_slots)]
        outputs = self.network(blocks.flatten(0, 1), torch.tensor(positions), self.arena.attend(sees))
        outputs = self.network.drafting(outputs.unflatten(0, (len(sequences), n_slots)))
        drafts = zip(outputs, sequences, trees, strict=True)
        return [tree_scores(self.network, out, sequence.tokens[-1], tree) for out, sequence, tree in drafts]


def tree_scores(network: DFlash, outputs: Tensor, root: int, tree: Tree) -> tuple[Tensor, Tensor | None]:
    """``[1 + nodes, vocab]`` scores and ``[1 + nodes]`` chances of the children of a root token and of every node.

    ``outputs`` ``[n_drafts, hidden]`` are those of a block's drafting slots.
    """
    kept: dict[int, Tensor | None] = {}
    scores, chances = [], []
    for node in range(-1, len(tree)):
        parent, token = (-2, root) if node < 0 else tree[node]
        slot, previous = outputs[len(path_to(tree, node))], torch.tensor(token)
        scores.append(network.logits(slot))
        if network.spec.markov_rank:
            added, kept[node] = network.markov(previous, slot, kept.get(parent))
            scores[-1] = scores[-1] + added
        if network.spec.has_confidence:
            chances.append(network.acceptance(slot, previous))
    return torch.stack(scores), torch.stack(chances) if chances else None


def upwards(tree: Tree, node: int) -> list[int]:
    """A node and its ancestors below the root."""
    return [] if node < 0 else [*upwards(tree, tree[node][0]), node]
