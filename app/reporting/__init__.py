"""What every report is made of: numbers, tables, JSON documents, plots, progress bars, colours."""
