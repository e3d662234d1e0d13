"""What people look at: pictures, charts, reports, the explorer."""
