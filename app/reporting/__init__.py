"""What ``bench``, ``load`` and ``corpus`` share to report a run; these modules know nothing of what was measured."""
