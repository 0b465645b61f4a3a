"""The model that an ingress encodes for: it follows the router's, as long as the tokenizer stays the same."""

from __future__ import annotations

from deployments.submission.messages import ModelCard
from engine.errors import ModelChangedError


class ServedModel:
    """What one ingress knows of the model behind its router.

    Args:
        card: as a router gave it.
    """

    def __init__(self, card: ModelCard) -> None:
        self.card = card
        self.tokenizer = ""  # ``tokenizer_hash`` of what the edge encodes with; "": unknown
        self.trouble = ""  # why this ingress can encode nothing for the router's model

    def adopt(self, card: ModelCard) -> None:
        """Encode for the model of this card from now on; requests that were encoded before name the earlier one.

        Raises:
            ModelChangedError: it has another tokenizer than the edge, which keeps the card that it has.
        """
        theirs, ours = card.identity.tokenizer, self.tokenizer
        if theirs and ours and theirs != ours:
            self.trouble = (
                f"the model that is served now has another tokenizer ({theirs[:12]} instead of {ours[:12]}) than this "
                "replica, which is being replaced; send the request again"
            )
            raise ModelChangedError(self.trouble)
        self.trouble, self.card = "", card
