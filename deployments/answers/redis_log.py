"""Answers in a Redis: one hash per answer, and a lease, so that two keepers never write the same answers.

Every key expires. A script may run twice: fields have the index of their event. ``last`` has the id of the keeper that
took the lease last; only that keeper can write.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence

from deployments.answers.log import AnswerChange, LeaseLostError
from engine.errors import ConfigError
from retrieval_store.errors import StoreAddressError, StoreError
from retrieval_store.snapshots.names import segment
from retrieval_store.stores.records import StoreOptions
from retrieval_store.stores.redis_client import Command, RedisClient
from retrieval_store.stores.redis_layout import PREFIX
from retrieval_store.stores.redis_url import parse_redis_url

LEASE_S = 4.0
OPTIONS = StoreOptions(connect_seconds=1.0, read_seconds=2.0)

# KEYS lease, last; ARGV this keeper, beginning of the ids of keepers to take over from, milliseconds of lease and last.
# 0: another keeper has the lease
_TAKE = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] and string.sub(holder, 1, #ARGV[2]) ~= ARGV[2] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[4])
return 1
"""

# KEYS lease, last, ids, answers ...; ARGV this keeper, milliseconds of lease, last and ids; then for every answer: id,
# milliseconds to live (0: delete it), number of fields, fields and values. 0: the lease is lost; -1: Redis was emptied
_WRITE = """
local last = redis.call('GET', KEYS[2])
if last ~= ARGV[1] then return last and 0 or -1 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
local at = 4
for i = 4, #KEYS do
  local id, live, fields = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  at = at + 3
  if live == '0' then
    redis.call('UNLINK', KEYS[i])
    redis.call('SREM', KEYS[3], id)
  else
    for n = 0, fields - 1 do redis.call('HSET', KEYS[i], ARGV[at + 2 * n], ARGV[at + 2 * n + 1]) end
    redis.call('PEXPIRE', KEYS[i], live)
    redis.call('SADD', KEYS[3], id)
  end
  at = at + 2 * fields
end
redis.call('PEXPIRE', KEYS[3], ARGV[3])
return 1
"""

# KEYS lease; ARGV this keeper
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('UNLINK', KEYS[1]) end return 1"


class RedisAnswerLog:
    """The answers of one server; see ``AnswerLog``.

    Args:
        url: of the Redis.
        name: of the server; no two servers may share it.
        instance: of the application; a keeper takes over from a keeper of the same one at once.
        longest: seconds that any answer lives at most.
    """

    def __init__(self, url: str, name: str, instance: str, longest: float) -> None:
        try:
            address = parse_redis_url(url, os.environ)
            base = f"{PREFIX}:{{answers:{segment(name)}}}"
            self._client = RedisClient(address, OPTIONS)
        except (StoreAddressError, ValueError) as error:
            raise ConfigError(f"the answer store: {error}") from error
        self._shown, self._instance = address.shown, f"{instance}:"
        self._me = self._instance + secrets.token_hex(8)
        self._lease, self._last, self._ids = f"{base}:owner", f"{base}:last", f"{base}:ids"
        self._answer = f"{base}:answer:"
        self._lives = (round(LEASE_S * 1000), round(longest * 1000))  # of lease, and of last and ids

    def load(self) -> list[dict[str, bytes]] | None:
        if not self._take(self._instance):
            return None
        ids: set[bytes] = self._client.call("SMEMBERS", self._ids)
        found = []
        for id_ in ids:
            fields: dict[bytes, bytes] = self._client.call("HGETALL", self._answer + id_.decode())
            if fields:
                found.append({name.decode(): value for name, value in fields.items()})
            else:
                self._client.call("SREM", self._ids, id_)  # it has expired
            self.write(())  # keep the lease
        return found

    def write(self, changes: Sequence[AnswerChange]) -> None:
        arguments: list[Command] = []
        for change in changes:
            arguments += [change.id, round(change.seconds_to_live * 1000), len(change.fields)]
            for name, value in change.fields.items():
                arguments += [name, value]
        keys = [self._lease, self._last, self._ids, *(self._answer + change.id for change in changes)]
        state = self._client.run(_WRITE, keys, self._me, *self._lives, *arguments)
        if state == 0 or (state == -1 and not self._take(self._me)):
            raise LeaseLostError(f"{self._shown}: another answer keeper has taken {self._lease}")
        if state == -1:
            raise StoreError(f"{self._shown}: Redis has lost its contents")

    def close(self) -> None:
        try:
            self._client.run(_RELEASE, [self._lease], self._me)
        except StoreError:
            pass  # the lease expires
        finally:
            self._client.close()

    def _take(self, predecessors: str) -> bool:
        return bool(self._client.run(_TAKE, [self._lease, self._last], self._me, predecessors, *self._lives))
