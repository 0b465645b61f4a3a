"""``spectra chat``: a conversation with a running server, in a terminal."""

from __future__ import annotations

import argparse
import os
import sys

KEY_VARIABLE = "SPECTRA_API_KEY"
LONGEST_S = 86400  # of --timeout
DESCRIPTION = """\
Talk to a running server. Answers are streamed; the colour of a token shows the source that drafted it (plain: the
target model). A line below gives tokens, forward passes, seconds and seed. Ctrl-C stops an answer, Ctrl-D ends the
program. After a lost connection, the answer continues if the server keeps answers.

  spectra chat
  /race autoregressive suffix+token-recycling Write a story about a panda named Anna.

sends the prompt once with each method and the same seed, and prints whether the texts are identical, and the forward
passes and seconds of each. /help lists the commands. NO_COLOR=1, or an output that is no terminal, turns colours off.
Input may come from a pipe.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8000", metavar="U", help="of the server (default: http://127.0.0.1:8000)")
    add("--api-key", metavar="KEY", help=f"sent as bearer token (default: the variable {KEY_VARIABLE}, if set)")
    add("--tls-ca", metavar="FILE", help="CA certificates to trust for https, PEM (default: the system's)")
    add("--model", metavar="NAME", help="model to ask (default: the first that GET /v1/models lists)")
    add("--method", metavar="X", help="speculation method (default: the server's)")
    add("--seed", metavar="N", help="seed of every answer (default: a new one for each)")
    add("--temperature", metavar="T", help="0 is greedy (default: the server's)")
    add("--max-tokens", metavar="N", help="most tokens of an answer (default: the server's)")
    add("--timeout", default="120", metavar="S", help="seconds without any data of an answer (default: 120)")


def run(arguments: argparse.Namespace) -> int:
    from app.chat.loop import MOST_SEED, Chat, ChatConversation, number, reader
    from app.chat.screen import Screen, wants_colours
    from app.load.run import model_at
    from app.load.settings import PATHS, base_of, trusting
    from app.load.stream import Endpoint

    base, tls = base_of(arguments.url), trusting(arguments.tls_ca)
    seed, heat, most = arguments.seed, arguments.temperature, arguments.max_tokens
    talk = ChatConversation(
        "",
        arguments.method,
        None if seed is None else number(seed, "--seed", 0, MOST_SEED, int),
        None if heat is None else number(heat, "--temperature", 0, 2, float),
        None if most is None else number(most, "--max-tokens", 1, MOST_SEED, int),
    )
    timeout = number(arguments.timeout, "--timeout", 0.1, LONGEST_S, float)
    key = arguments.api_key or os.environ.get(KEY_VARIABLE)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    talk.model = arguments.model or model_at(base, headers, tls)
    talk.trace = wants_colours(sys.stdout)
    screen = Screen(sys.stdout, talk.trace)
    if sys.stdin.isatty():
        screen.line(f"{talk.model} at {base}; /help lists commands")
    endpoint = Endpoint(base + PATHS["chat"], headers, timeout)
    chat = Chat(talk, endpoint, tls, screen)
    chat.run(reader())
    return 0
