"""What people look at: tables in the terminal, charts as pictures and pages."""
