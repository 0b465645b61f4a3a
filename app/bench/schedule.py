"""Which turns are run, and in which order, so that a stopped run can continue; models and recordings share it."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain, count, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from app.bench.records import BenchSetting, Key, TurnRecord, open_records
from app.reporting.record_file import RecordFile
from app.reporting.report import bar

Turn = tuple[int, int]  # index of a question, and of one of its turns


class BenchSchedule(ABC):
    """Runs every method on all turns under every setting, as far as a file lacks their records.

    Methods take turns unit by unit, each round in another order, so that changes of the machine's speed meet all
    methods alike. In a cold setting every turn has a scope of its own, so that speculators know nothing of earlier
    turns; in a warm setting all turns of a method and repeat share a scope. A warm pass that was interrupted begins
    again, because the speculators' memory is gone.

    Args:
        units: turns that a method runs in a row.
        lessons: passes over turns that a method runs before a warm setting is measured; their records do not count.
    """

    def __init__(
        self,
        methods: Sequence[str],
        settings: Sequence[BenchSetting],
        repeats: int,
        units: Sequence[Sequence[Turn]],
        lessons: Sequence[Sequence[Turn]],
    ) -> None:
        self.methods, self.settings = methods, settings
        self._repeats, self._units, self._lessons = repeats, units, lessons
        self.turns = list(chain(*units))
        self._shared: str | None = None  # the scope of all turns of a warm setting
        self._fresh = (f"cold {i}" for i in count())

    @abstractmethod
    def records(self, setting: BenchSetting, method: str, repeat: int, turns: Sequence[Turn]) -> Iterator[TurnRecord]:
        """Run all turns of some questions."""

    def scope(self) -> str:
        """The scope of the next turn; speculators share what they learn among the requests of one scope."""
        return self._shared or next(self._fresh)

    def work(self, file: RecordFile[TurnRecord]) -> int:
        """Turns still to be run, lessons included; drops the records of warm passes that cannot be continued."""
        todo = 0
        for repeat, setting, method in product(range(self._repeats), self.settings, self.methods):
            missing = _missing(file, setting, method, repeat, self.turns)
            if setting.warm and missing:
                file.drop(Key(setting, method, repeat, *turn) for turn in self.turns)
                todo += sum(map(len, self._lessons)) + len(self.turns)
            else:
                todo += len(missing)
        return todo

    def run(self, file: RecordFile[TurnRecord], done: Callable[[], object]) -> None:
        """Run the turns that ``file`` lacks and add their records; ``done`` is called after every turn."""
        for repeat, setting in product(range(self._repeats), self.settings):
            if setting.warm:
                for method, lesson in product(self.methods, self._lessons):
                    if _missing(file, setting, method, repeat, self.turns):
                        for _ in self._run(setting, method, repeat, lesson):
                            done()
            for i, unit in enumerate(self._units):
                for method in rotated(self.methods, i + repeat):
                    if turns := _missing(file, setting, method, repeat, unit):
                        for record in self._run(setting, method, repeat, turns):
                            file.append(record)
                            done()

    def _run(self, setting: BenchSetting, method: str, repeat: int, turns: Sequence[Turn]) -> Iterator[TurnRecord]:
        self._shared = f"{setting.label}, {method}, {repeat}" if setting.warm else None
        return self.records(setting, method, repeat, turns)


def _missing(
    file: RecordFile[TurnRecord], setting: BenchSetting, method: str, repeat: int, turns: Sequence[Turn]
) -> list[Turn]:
    """All turns of the questions that lack a record: the turns of a question are run together."""
    lacking = {turn[0] for turn in turns if Key(setting, method, repeat, *turn) not in file.by_key}
    return [turn for turn in turns if turn[0] in lacking]


def rotated(methods: Sequence[str], by: int) -> list[str]:
    """The methods, cyclically shifted ``by`` places."""
    by %= len(methods)
    return [*methods[by:], *methods[:by]]


def recorded(run: BenchSchedule, out: Path | None, settings: Mapping[str, Any], restart: bool) -> list[TurnRecord]:
    """Run what the records in ``out`` lack, with a progress bar; returns those of the run's methods and settings.

    Without ``out``, the records are deleted at the end. Raises ConfigError if ``out`` holds records of other settings.
    """
    with (
        TemporaryDirectory() if out is None else nullcontext(out) as folder,
        open_records(Path(folder) / "records.jsonl", settings, restart) as file,
    ):
        try:
            with bar(None, run.work(file), "turn") as shown:
                run.run(file, shown.update)
        except KeyboardInterrupt:
            kept = f"{len(file.records)} records are kept in {file.path}; the same command continues from there"
            print(f"spectra: stopped; {'no records are kept without --out' if out is None else kept}", file=sys.stderr)
            raise
        return [one for one in file.records if one.method in run.methods and one.setting in run.settings]
