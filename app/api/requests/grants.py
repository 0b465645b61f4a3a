"""What the fields of a body come to once its caller is known."""

from __future__ import annotations

import hashlib

from app.access.caller import Caller
from app.api.requests.schemas import GenerationRequest
from app.api.service import ServiceSettings
from deployments.submission.messages import ModelCard
from engine.errors import RequestError
from engine.request import Request
from engine.sampling.params import SamplingParams

PLAIN = "autoregressive"  # the method without drafts


def granted(body: GenerationRequest, caller: Caller, settings: ServiceSettings, card: ModelCard) -> Request:
    """What all choices of a body have in common: everything but prompt, parameters and id.

    Raises:
        AccessError: the caller may not ask for the priority, namespace, method, number of nodes or trace.
        RequestError: the server never drafts as many nodes as are asked for.
    """
    options = body.speculative
    namespace = "" if options.namespace in (None, settings.shared_namespace) else options.namespace
    caller.check_priority(body.priority)
    caller.check_namespace(namespace)
    if options.trace:
        caller.check_trace()
    method = (options.method or "") if options.enabled else PLAIN
    if options.enabled:
        caller.check_method(method)
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
    )


def _granted_nodes(requested: int | None, method: str, caller: Caller, card: ModelCard) -> int:
    """Return ``Request.max_nodes``: the requested number, or the method's default within the caller's limit.

    This is the one place that refuses a number; the scheduler only cuts the trees of a full step. Requests that draft
    nothing have a number, too: before one is admitted, the cache must have room for as much text.
    """
    caller.check_nodes(requested)
    if requested is not None and requested > card.limit_nodes:
        message = f"max_nodes is {requested}; this server drafts at most {card.limit_nodes} nodes per step"
        raise RequestError(message, "max_nodes")
    if requested is not None:
        return requested
    default = card.default_nodes(method)
    return default if caller.max_nodes is None else min(default, caller.max_nodes)


def scope_of(tenant: str, namespace: str, *, salt: str | None) -> str:
    """The scope of requests that agree in tenant and namespace, which hold no "/", and in their cache salt.

    The salt is a secret of those who share it: it travels as a digest, so that nothing behind the edge can show it.
    """
    digest = hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest() if salt else ""
    return "/".join((tenant, namespace, digest))


def _feeds(caller: Caller, namespace: str, shared: str) -> bool:
    """Whether an answer may become text of its namespace; a tenant's becomes everybody's only if its key says so."""
    if caller.feeds is None:
        return bool(namespace) or not caller.tenant
    return (namespace or shared) in caller.feeds
