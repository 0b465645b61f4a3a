"""A namespace in Redis: the names of its keys, and the Lua scripts for what must happen at once.

The keys share a hash tag, so that a Cluster keeps them on one node. Answers can get lost and calls be repeated, so
every script but ``APPEND`` may run twice.
"""

from __future__ import annotations

from retrieval_store.snapshots.names import segment

PREFIX = "spectra"
MANIFEST_FIELD = "manifest"  # of a version's or an upload's hash; the other fields are ``chunk_field``


class RedisKeys:
    """``spectra:{NAMESPACE}:...``."""

    def __init__(self, namespace: str) -> None:
        self._base = f"{PREFIX}:{{{segment(namespace)}}}"
        # Hash: version, revision, before (versions that rollbacks go through), move (id of the last one).
        self.current = f"{self._base}:current"
        # Sorted set: versions in order of publication; those that expired are dropped by the next reader.
        self.versions = f"{self._base}:versions"
        self.history = f"{self._base}:history"  # list: moves of current
        self.log = f"{self._base}:log"  # stream: live texts
        self.hints = f"{self._base}:hints"  # channel: something changed

    def version(self, version: str) -> str:
        """Hash: a whole snapshot in one key, so that it expires, or moves here from an upload, at once."""
        return f"{self._base}:version:{version}"

    def upload(self, name: str) -> str:
        """Hash like a version's, with a time to live from the beginning."""
        return f"{self._base}:upload:{name}"


def chunk_field(file: str, number: int) -> str:
    """Field of one piece of a file."""
    return f"file:{file}:{number}"


# KEYS upload; ARGV field, contents, milliseconds to live
WRITE = """
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""

# KEYS upload, version, versions; ARGV name of the version, 1 to replace its contents, channel, milliseconds that it
# stays unused. 0: the upload is gone
COMMIT = """
local there = redis.call('EXISTS', KEYS[2])
local left = redis.call('PTTL', KEYS[2])
if redis.call('HEXISTS', KEYS[1], 'manifest') == 0 then
  if there == 0 then return 0 end
elseif there == 1 and ARGV[2] == '0' then
  redis.call('UNLINK', KEYS[1])
else
  redis.call('RENAME', KEYS[1], KEYS[2])
end
if left == -1 then
  redis.call('PERSIST', KEYS[2])
else
  redis.call('PEXPIRE', KEYS[2], math.max(left, tonumber(ARGV[4])))
end
if there == 0 then redis.call('ZREM', KEYS[3], ARGV[1]) end
if not redis.call('ZSCORE', KEYS[3], ARGV[1]) then
  local last = redis.call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2]
  redis.call('ZADD', KEYS[3], (last and tonumber(last) or 0) + 1, ARGV[1])
end
redis.call('PUBLISH', ARGV[3], 'published')
return 1
"""

# KEYS version; ARGV milliseconds that it stays unused. 0: it is gone
KEEP = """
local left = redis.call('PTTL', KEYS[1])
if left >= 0 then redis.call('PEXPIRE', KEYS[1], math.max(left, tonumber(ARGV[1]))) end
return redis.call('EXISTS', KEYS[1])
"""

# KEYS current, version; ARGV name of the version, grace period in milliseconds. 0: it is gone; -1: it is current
RETIRE = """
if redis.call('EXISTS', KEYS[2]) == 0 then return 0 end
if redis.call('HGET', KEYS[1], 'version') == ARGV[1] then return -1 end
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return 1
"""

# KEYS current, history, version, [version before]; ARGV revision that current must have, version, revision, before, id
# of this move, entry of the history, its greatest length, grace period in milliseconds, channel. 0: no such version;
# -1: current has another revision
MOVE = """
local now = redis.call('HMGET', KEYS[1], 'revision', 'move')
if now[2] == ARGV[5] then return 1 end
if (now[1] or '0') ~= ARGV[1] then return -1 end
if redis.call('EXISTS', KEYS[3]) == 0 then return 0 end
redis.call('PERSIST', KEYS[3])
if KEYS[4] then redis.call('PEXPIRE', KEYS[4], ARGV[8]) end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'revision', ARGV[3], 'before', ARGV[4], 'move', ARGV[5])
redis.call('RPUSH', KEYS[2], ARGV[6])
redis.call('LTRIM', KEYS[2], '-' .. ARGV[7], '-1')
redis.call('PUBLISH', ARGV[9], 'moved')
return 1
"""

# KEYS versions, version; ARGV name of the version. Empty: it expired, and is now unlisted
DESCRIBE = """
local manifest = redis.call('HGET', KEYS[2], 'manifest')
if manifest then return {manifest, redis.call('PTTL', KEYS[2])} end
if redis.call('EXISTS', KEYS[2]) == 0 then redis.call('ZREM', KEYS[1], ARGV[1]) end
return {}
"""

# KEYS log; ARGV entries to keep, channel, texts ...
APPEND = """
for number = 3, #ARGV do
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'tokens', ARGV[number])
end
redis.call('PUBLISH', ARGV[2], 'appended')
return 1
"""
