"""Checks what a body asks for against the rights of its caller, and bounds the size of its answer."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from app.access.caller import Caller
from app.api.requests.schemas import MAX_CHOICES, Body, CompletionRequest, GenerationRequest
from app.api.service import ServiceSettings
from app.telemetry.exchange import current
from deployments.submission.messages import ModelCard
from engine.errors import RequestError
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.drafting import AUTOREGRESSIVE
from speculators.methods import check_allowed, normalised

MAX_LOGPROBS_OF_PROMPTS = 1_000_000  # of one answer: some 75 bytes of JSON each, 1.5 s of work in all
OFFSET_COST = 2  # writing a token's offset in an echo takes as long as so many log-probabilities


def granted(body: GenerationRequest, caller: Caller, settings: ServiceSettings, card: ModelCard) -> Request:
    """Returns what all choices of a body share: everything but prompts, prediction, parameters and id.

    Raises:
        StatusError: the caller may not ask for the priority, namespace, method, number of nodes or trace.
        RequestError: the body asks for a method that the server lacks, or for more drafted nodes than it allows.
    """
    options = body.speculative
    namespace = "" if options.namespace in (None, settings.shared_namespace) else options.namespace
    method = (options.method or "") if options.enabled else AUTOREGRESSIVE
    caller.check(
        priority=body.priority,
        namespace=namespace,
        trace=options.trace,
        method=method if options.enabled else "",
        nodes=options.max_nodes if options.enabled else None,
    )
    if card.methods and options.enabled:
        check_allowed(normalised(method or card.method), card.methods)
    return Request(
        [],
        SamplingParams(),
        method=method,
        max_nodes=_granted_nodes(options.max_nodes if options.enabled else None, method, caller, card),
        priority=body.priority,
        namespace=namespace,
        scope=scope_of(caller.tenant, namespace, salt=body.cache_salt),
        teaches=body.cache_salt is None and _feeds(caller, namespace, settings.shared_namespace),
        tenant=caller.tenant or ((body.user or namespace) if caller.names_tenant else ""),
        trace=options.trace,
        model=card.identity.digest,
        request_id=current().request_id,
        traceparent=current().traceparent,
    )


def _granted_nodes(requested: int | None, method: str, caller: Caller, card: ModelCard) -> int:
    """Return ``Request.max_nodes``: the requested number, or the method's default within the caller's limit.

    Only this function refuses a number; the scheduler only cuts the trees of a full step. Requests without drafts have
    a number too: before one is admitted, the cache must have room for as much text.
    """
    if requested is not None:
        if requested > card.limit_nodes:
            message = f"max_nodes is {requested}; this server drafts at most {card.limit_nodes} nodes per step"
            raise RequestError(message, "max_nodes")
        return requested
    default = card.default_nodes(method)
    return default if caller.max_nodes is None else min(default, caller.max_nodes)


def scope_of(tenant: str, namespace: str, *, salt: str | None) -> str:
    """The scope of requests that agree in tenant and namespace, which hold no "/", and in their cache salt.

    The salt is a secret of those who share it. Only its digest is passed on, so that no other process can show it.
    """
    digest = hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest() if salt else ""
    return "/".join((tenant, namespace, digest))


def _feeds(caller: Caller, namespace: str, shared: str) -> bool:
    """Whether an answer may join the texts of its namespace; tenants need a key that permits it for shared ones."""
    if caller.feeds is None:
        return bool(namespace) or not caller.tenant
    return (namespace or shared) in caller.feeds


def check_logprobs_of_prompts(body: Body, prompts: Sequence[Sequence[int]]) -> None:
    """Raises RequestError if an answer would hold too many log-probabilities of the tokens of ``prompts``."""
    per_token = 0 if body.prompt_logprobs is None else body.prompt_logprobs + 1
    param, n = "prompt_logprobs", 1  # a chat's answer holds them once
    if isinstance(body, CompletionRequest):
        n = body.n
        if body.echo and body.logprobs is not None:
            per_token += body.logprobs + 1 + OFFSET_COST
            param = param if body.prompt_logprobs is not None else "echo"
    n_tokens = sum(map(len, prompts))
    if n_tokens * per_token * n > MAX_LOGPROBS_OF_PROMPTS:
        raise RequestError(
            f"{param} asks for {per_token} log-probabilities of each of {n_tokens} tokens of prompts, {n} times; all "
            f"together must be at most {MAX_LOGPROBS_OF_PROMPTS}: ask for fewer alternatives, choices or tokens",
            param,
        )


def check_choices(n: int, common: Request) -> None:
    most = 1 if common.trace else MAX_CHOICES  # a whole answer's trace is made at one go
    if n > most:
        why = " with speculative.trace" if common.trace else ""
        raise RequestError(f"the request asks for {n} choices (prompts times n); it must be at most {most}{why}", "n")
