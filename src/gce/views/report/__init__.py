"""A controlled run as one page that people look at."""

from gce.views.report.details import Details, details_of_plan, details_of_run, read_details, write_details
from gce.views.report.page import write_report

__all__ = ["Details", "details_of_plan", "details_of_run", "read_details", "write_details", "write_report"]
