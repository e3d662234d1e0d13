"""Folders of CSV or npz files, one folder a system, into data sets; `docs/own_data.md` shows the layout by example."""

from gce.trajectory.importing.folder import Summary, check_folder, count_episodes, import_folder, read_folder

__all__ = ["Summary", "check_folder", "count_episodes", "import_folder", "read_folder"]
