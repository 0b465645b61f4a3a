"""Runs a rank of a stage other than its leader: it does what the leader's commands say."""

from __future__ import annotations

import logging
from typing import NoReturn

import msgspec
import torch

from engine.parallel.commands import (
    AdmitCommand,
    ForwardCommand,
    HeadCommand,
    JoinCommand,
    RankLink,
    ResetCommand,
    RowsCommand,
    WarmUpCommand,
    decode_command,
    encode_rows,
)
from engine.parallel.exchanges import GroupExchange, StarExchange
from engine.stage.artefacts import KeptCaptures
from engine.stage.base import Activations
from engine.stage.stage import Stage
from engine.step import Step, decode_result, decode_step

logger = logging.getLogger(__name__)


def follow(stage: Stage, link: RankLink) -> NoReturn:
    """Serve a leader until it is lost, from an empty stage on.

    Any error ends the connection: the leader then connects all ranks again.

    Raises:
        EOFError, OSError, msgspec.DecodeError: the leader, or another rank, is lost.
    """
    stage.reset()
    ranks = stage.ranks
    ranks.exchange = StarExchange(ranks.share, [link])
    follower = _Follower(stage)
    try:
        while True:
            command = decode_command(link.receive())
            if isinstance(command, JoinCommand):
                ranks.exchange = GroupExchange(ranks.share, [link], stage.device, command.backend, command.file)
            elif isinstance(command, RowsCommand):
                link.send(encode_rows(follower.captures.take_rows(decode_result(command.result)) or {}))
            else:
                follower.obey(command)
    except (EOFError, OSError, msgspec.DecodeError, torch.AcceleratorError):  # the last: of a broken device
        raise
    except Exception as error:  # of any kind: the process can serve the next leader
        logger.exception("this rank failed")
        raise EOFError(f"this rank failed: {error}") from error
    finally:
        link.close()
        end_exchange(stage)


def end_exchange(stage: Stage) -> None:
    """End a stage's last exchange with its recorded steps: NCCL's abort waits until no graph holds its connection."""
    exchange = stage.ranks.exchange
    if exchange is not None:
        exchange.close()
        stage.forget_graphs()
        exchange.close(waits=True)


class _Follower:
    """The state of a rank between the commands of one leader."""

    def __init__(self, stage: Stage) -> None:
        self.captures = KeptCaptures()
        self._stage = stage
        self._step = Step(0, [])  # admitted last

    def obey(self, command: ResetCommand | WarmUpCommand | AdmitCommand | ForwardCommand | HeadCommand) -> None:
        stage, exchange = self._stage, self._stage.ranks.connected
        match command:
            case ResetCommand():
                stage.reset()
                self.captures.clear()
            case WarmUpCommand():
                stage.warm_up(answers=False)
            case AdmitCommand():
                self._step = decode_step(command.step)
                stage.admit(self._step)
                if self._step.work:
                    stage.prepare(self._step)
            case ForwardCommand():
                incoming = stage.new_rows(command.n_rows) if command.n_rows else None
                if incoming is not None:
                    exchange.broadcast(incoming[0])
                stage.forward(self._step, None if incoming is None else Activations(incoming))
                captured = stage.captured()
                if captured is not None:
                    self.captures.keep(self._step.step_id, captured)
            case HeadCommand():
                rows = stage.new_rows(command.n_rows)[0]
                exchange.broadcast(rows)
                exchange.collect(stage.head_part(rows))
