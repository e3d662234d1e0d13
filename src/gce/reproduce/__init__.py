"""The paper's tables and figures by command: cells that are kept, experiments made of cells, and reports of both."""
